// Package instances runs container groups on this machine: it is what is behind Azure Container Instances (package aci). A group is a host
// in its virtual network without a virtual machine to see: a network namespace whose eth0 is a NIC of the group's subnet and whose eth1
// leads, by a link-local network, to the machine that the group runs on, which translates what goes to the internet. The kube-proxy
// extension is a packetwalk-node in the group's namespace.
//
// Groups outlive the process that runs them: their state is in files, and Open takes over what it finds.
//
// It must not import Kubernetes, fabric or lab: they are behind the interface Network.
package instances
