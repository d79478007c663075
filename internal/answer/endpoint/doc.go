// Package endpoint owns the ends of a walk as people name them: their grammar (pod/NAME:PORT, svc/NAME, internet, an address), and what they
// mean among the hosts and Kubernetes objects of a snapshot: the packet that one sends to the other, and where it starts.
//
// It is pure, and must not import kernel, lab or Kubernetes. Its errors are for who named the ends, by the flags --from, --to and --at.
package endpoint
