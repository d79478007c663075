// Package bpf finds BPF programs that the kernel calls for packets and sockets: at links, in control groups, in network namespaces and at
// netfilter's hooks. It only reads, and loads no module.
package bpf
