// Package chart holds the Helm chart deploy/chart to what Helm and Kubernetes take, and the manifests in deploy/manifests to what it
// renders. It is a module of its own, because Helm needs other versions of Kubernetes' libraries than the control plane; "make helm" builds
// Helm of it.
package chart
