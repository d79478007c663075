// Package vnet is Azure's side of the lab as plain data: virtual networks, subnets, network interfaces, public addresses and
// the load balancer, and the pure functions over them: who gets which address ([Network.AllocateNIC], [Network.AllocateFrontend])
// and what each namespace must have so that packets go the way they go in Azure ([NewPlan]).
//
// It must not import Kubernetes or kernel, and does nothing to the machine.
package vnet
