// Package controlplane is upstream's control plane as processes: certificates, kubeconfigs, files, command lines and readiness of etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler, all one program (the nested module controlplane/).
//
// It decides what runs and how; package supervise keeps it running, and the caller decides in which network namespace.
package controlplane
