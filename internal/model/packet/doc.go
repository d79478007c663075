// Package packet owns the packet as the walk sees it: its addresses and ports, the header fields that rules can look at, what the kernel
// keeps beside it while it is inside one machine, and the flow that conntrack knows it by.
//
// Everything here is plain data, IPv4 and IPv6 alike.
package packet
