// Package vnet is Azure's side of the lab as plain data: virtual networks, subnets, network interfaces, public addresses and
// the load balancer, network security groups, and the pure functions over them: who gets which address ([Network.AllocateNIC],
// [Network.AllocatePublicIP]), what security groups say of a flow ([Network.Decide]), and what each namespace must have so that packets go
// the way they go in Azure ([NewPlan]).
package vnet
