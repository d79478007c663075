// Package instances runs container groups, as Azure Container Instances does (package aci). A group is a pod on its own machine. The pod's
// network namespace has two links: eth0 is a NIC of the group's subnet, and eth1 leads, by a link-local network, to the machine, which
// masquerades what goes to the internet. The machine runs containerd and a kubelet without an API server. The kube-proxy extension is a
// packetwalk-node in the pod's network namespace.
//
// Groups outlive the process that runs them: their state is in files, and Open takes over what it finds.
package instances
