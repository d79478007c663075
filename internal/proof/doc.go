// Package proof lays a walk beside what the kernel did: it sends the real packet from the real namespace, reads the kernel's trace and
// connections in every namespace on the way, and finds the first step where prediction and kernel part.
//
// The package must not import Kubernetes or lab.
package proof
