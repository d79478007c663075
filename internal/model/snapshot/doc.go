// Package snapshot owns the state of network namespaces at one moment, and what links them: for each host its links, routes, rules, sets,
// connections and settings, and which host is at the other end of each of its wires.
//
// A capture is a file with the raw output of the machine's own tools (iptables-save, nft -j, ip -j, conntrack -L, …) and a manifest; a
// snapshot is what reading them gives. The running lab, a live machine and a capture from far away come the same way. What is not in a
// capture is known to be missing: [Host.Missing] says so, and the walk says what it assumes.
//
// The package may import the packages of syntax and of values. It must not import kernel, Kubernetes, or anything that decides what there
// should be.
package snapshot
