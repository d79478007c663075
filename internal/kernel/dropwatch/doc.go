// Package dropwatch counts the packets that the kernel drops in network namespaces, by flow and reason. A BPF program at the tracepoint
// skb:kfree_skb counts them in a map, so that no drop is lost between two reads, whatever their rate. It needs root, the kernel's types
// (CONFIG_DEBUG_INFO_BTF) and Linux 5.8.
package dropwatch
