// Package kernel is what touches the machine's network: network namespaces, links, addresses, routes, policy rules, neighbours,
// sysctls, nftables and iptables rule sets, connection tracking, and the processes that live in namespaces. Besides it only programs
// of their own do, on nodes and in containers (docs/dev/design.md has which, and why).
//
// Everything it does happens inside a [Namespace] that it was given: nothing here changes the namespace that the process was started in. It
// takes plain data ([State]) and makes the kernel agree with it; what that data should be is not its business.
package kernel
