// Package boot is what runs inside a real node, as packetwalk-app: its first process, from fresh namespaces to a machine with a root of its
// own, and what keeps containerd and kubelet running there.
//
// Its processes are there once a node and must not import anything large: nothing of Kubernetes, no net/http.
package boot
