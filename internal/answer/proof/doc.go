// Package proof lays a walk beside what the kernel did: it sends the real packet from the real namespace, reads the kernel's trace and
// connections in every namespace on the way, and finds the first step where prediction and kernel part.
//
// What is compared, in each host, apart for the request and for what comes back:
//   - every rule that applied and every policy that decided, in order, with its verdict, the packet's mark after it, and the packet's
//     tuple and TTL at the beginning of each base chain. Rules of iptables-legacy are not in the kernel's trace: they are counted apart;
//   - the packet at every interface that it came in by or left by: tuple, TTL, TOS, link-layer addresses where they are known;
//   - the connection that conntrack kept;
//   - what the sender learnt.
//
// Ports that the walk gives as a span agree with every number in it. Where chains of several tables have the same priority at a hook, which
// of them the kernel calls first is in no dump: it is taken from the trace, and the packet is walked once more in that order.
package proof
