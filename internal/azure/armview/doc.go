// Package armview takes the resources of a real subscription, as Azure Resource Manager or "az … -o json" shows them ([Read]), and lets
// a walk go on through them ([Extend]): past a node's NIC, by network security groups, routes, NAT gateways, load balancers and public
// addresses, to the address that the internet, a firewall or a peered network sees.
//
// What was not read, and what is not modelled, is unknown where a packet comes to it, and never taken to be absent. The rules are those
// of package vnet's plan, and signed as they are, so that both sorts of walks read alike.
//
// The package is pure.
package armview
