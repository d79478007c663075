// Package ippool turns Calico's IPPools into what decides whose traffic is masqueraded on a node: two IP sets and the nat chains that
// felix, Calico's agent, writes, to the letter and with felix's own hash in each rule's comment.
//
// A packet leaves with the node's address when its source is in a pool with natOutgoing and its destination in no pool. Nothing else of a
// pool counts for that, as in felix (felix/dataplane/linux/masq_mgr.go): a disabled pool is in the sets, and so is one whose nodeSelector
// does not select the node; both fields only keep Calico's IPAM from assigning its addresses.
//
// The package is pure: it must not import client-go, kernel or walk. Build gives the same plan for the same objects in any order.
package ippool
