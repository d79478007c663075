// Package nftables makes one nftables table a family of a node's service ports: named sets and maps that hold what differs from service
// to service, and chains whose number does not depend on how many services there are. A connection's first packet finds its service by one
// look-up for each fan-out (number of endpoints) that there is, keyed by address, protocol and port, which leads to that fan-out's chain;
// the chain draws a slot, and one more look-up, keyed by the same and the slot, gives the endpoint. Service ports with session affinity
// have a chain and a map of clients of their own, and are found by a verdict map.
//
// A state is brought to other service ports by steps, each of which is one service port's change; see [State.Update]. All but the Syncer is
// pure.
package nftables
