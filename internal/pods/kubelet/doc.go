// Package kubelet is one lab node as Kubernetes sees it: it registers the node and keeps its lease, runs the pods that are bound to it,
// reports their status, and serves logs, exec, attach and port-forward to the API server. The node and pod controllers and the streaming
// handlers are the virtual-kubelet library's; what a pod does is decided here.
//
// The life of a pod is a pure state machine (type machine): what happened goes in, what is to be done and the pod's status come out, time
// is an argument. A worker per pod does what the machine says: volumes, network namespace and CNI plugin, containers, probes, hooks. What
// it did stands in a file, so that a kubelet that was killed finds its pods, which ran on, when it comes back.
//
// What differs from upstream's kubelet: hostPath is a tree of the node's own, with the programs and the like that a container sees of the
// machine anyway; persistent volumes are not there. A pod that sets a field without effect gets an event NotSupported that names it.
//
// It must not import internal/lab or internal/azure.
package kubelet
