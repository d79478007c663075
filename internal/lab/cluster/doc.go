// Package cluster owns cluster.yaml: its types, AKS's defaults, and validation that names every fault at once with its field path,
// its line and what to write instead.
//
// It is pure (bytes in, values out) and imports nothing internal, so that every other package may read the configuration and nothing of
// the machine or of Kubernetes comes with it.
package cluster
