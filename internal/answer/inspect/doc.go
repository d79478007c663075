// Package inspect lists what a snapshot has about one machine, pod or Service, for people to browse: addresses, routes, neighbours and
// connections, and rules with their counters and writers. It is pure.
package inspect
