// Package drops says why a kernel dropped a packet. It walks the packet from where it came into the network namespace, and looks for the rule
// or the check by which it ends as the kernel says.
package drops
