// Package foreign tests walks through clusters of others: labs whose nodes are upstream's kubelet and containerd, on which network plugin
// and service proxy are not ours but flannel, CNI's reference plugins and kube-proxy, built from upstream's modules and installed by
// kubectl.
// From every kind of end to every kind of end a walk is compared with the kernel, through what the cluster alone can show: nodes and pods.
//
// Their programs take minutes to build, so that the tests run only where make test-foreign has built them.
package foreign
