// Package policies walks through random policies: Kubernetes' and Calico's, which Calico's own felix turns into rules, with the kernel beside
// each walk. It drives a lab of its own.
package policies
