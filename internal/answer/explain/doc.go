// Package explain turns a walk into words, JSON and pcapng: the glance, every rule, a schema for programs, a capture for Wireshark. It
// gives addresses, chains and rules the names of their owners: a Kubernetes object, a node, an agent's configuration line.
package explain
