// Package walk takes a packet through the snapshot of one or more machines as the kernel would: prerouting, routing, forward or input,
// output, postrouting, bridges, neighbours, wires to the next machine, and the reply's way back. Each step has the rule or the entry that
// decided, what it changed and why. Where something is chosen at random, or cannot be known, every outcome is walked, with its
// probability where there is one.
//
// walk does not know who wrote the rules and must not import kernel, Kubernetes, or any package that decides what there should be:
// otherwise checking our rules with it would prove nothing.
package walk
