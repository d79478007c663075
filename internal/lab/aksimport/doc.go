// Package aksimport writes a cluster.yaml that resembles a real AKS cluster, from the resources that armview read. What a lab does not
// have becomes a comment where it would stand. The result is one that cluster.Parse takes.
//
// The package is pure.
package aksimport
