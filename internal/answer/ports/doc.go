// Package ports counts the source ports that connections use towards each destination, from hosts' conntrack entries. A source port can be
// used once for each protocol, source address and destination: when none is left, new connections fail (SNAT port exhaustion). It is pure.
package ports
