// Package conflict finds who already does on a node what packetwalk-node is about to do: a service proxy of others that is alive, by its
// process and by the ports of kube-proxy, and another packetwalk-node, by a record of who has which part. Both count within a network
// namespace, in which rules are; many nodes may share a machine and its processes.
//
// It owns the look and the record, and changes nothing: what to do about an incumbent is its caller's.
package conflict
