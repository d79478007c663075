// Package snapshot owns the state of network namespaces at one moment, and what links them: for each host its links, routes, rules, sets,
// connections and settings, and which host is at the other end of each of its wires; and the Kubernetes objects that give things their
// names.
//
// It is plain data: package capture reads it from what tools print. What is not known of a host is named: [Host.Missing], [Host.Unread].
package snapshot
