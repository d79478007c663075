// Package cloud is the cloud provider that upstream's service and route controllers (k8s.io/cloud-provider) drive: it turns Services of
// type LoadBalancer into front ends, rules, probes and back-end pools of the lab's load balancer and into rules of the nodes' network
// security group, and with kubenet nodes into routes to their pods, with the names and settings that cloud-provider-azure gives them.
//
// What it changes is vnet's network, through a [Network]; who applies that is the caller's.
package cloud
