// Package realnode runs a node as a machine of its own: a root directory, network, mount, UTS, IPC, PID and cgroup namespaces, and in them
// containerd and upstream's kubelet. It owns what such a machine is made of (Spec), its files, its control groups and its processes from
// outside; package boot is what runs inside.
//
// It knows nothing of a cluster's configuration or of Kubernetes' API and must not import packages lab, azure or node.
package realnode
