// Package cni is the CNI plugin packetwalk-cni: it gives pods their network on a node as Azure CNI does, in bridge mode (azure0, ebtables,
// permanent neighbours) and in transparent mode (host routes, 169.254.1.1), or as kubenet did (cbr0, a range of addresses for each node),
// and manages the node's pod addresses.
//
// It owns the network between a node's namespace and its pods' namespaces, and one state file a network. It runs as a program of its own
// for every command (cmd/packetwalk-cni), in the node's network namespace, and knows nothing of a lab: what it is told comes by the CNI
// specification (https://www.cni.dev/docs/spec/), versions 0.3.0 to 1.1.0.
//
// A kind of network is a [network]; the table kinds in network.go names them. A new kind is one more entry there, and a new source of
// addresses one more entry in ipamTypes.
package cni
