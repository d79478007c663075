// Package policies walks through random policies, of Kubernetes and of Calico, which Calico's own felix turns into rules. The kernel is
// beside each walk. It starts its own lab.
package policies
