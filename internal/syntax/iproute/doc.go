// Package iproute owns the reading of what iproute2's ip and bridge print: links, addresses, routes, policy rules, neighbours and
// forwarding databases, as JSON (-j) and, where people paste it, as text. What it does not understand of a route or rule makes that one
// Unknown.
//
// It gives fib's values, and must not import Kubernetes or kernel.
package iproute
