package cni

import (
	"crypto/sha1"
	"encoding/hex"
	"net"
)

// HostInterface is the name of the node's end of a pod's veth: azv and the first 11 hexadecimal digits of the key's SHA-1, as Azure CNI derives it.
// [HostInterfaceKey] makes the key.
func HostInterface(key string) string {
	sum := sha1.Sum([]byte(key))
	return "azv" + hex.EncodeToString(sum[:])[:11]
}

// HostInterfaceKey is what an attachment's host interface is named after: namespace.pod in transparent mode (default.nginx becomes azvc440f455693), and
// network name, container and interface together in bridge mode, or where the runtime does not say which pod it is. A pod's interfaces other than
// eth0 add their own name, so that a pod with two attachments has two names.
func HostInterfaceKey(mode Mode, network, containerID, ifName, podNamespace, podName string) string {
	if mode != ModeTransparent || podNamespace == "" || podName == "" {
		return network + containerID + ifName
	}
	key := podNamespace + "." + podName
	if ifName != "eth0" {
		key += "." + ifName
	}
	return key
}

// podMAC is the address of a pod's interface: locally administered, and derived from the host interface's name alone, so that lost state
// can be rebuilt from what the kernel has (which neighbour belongs to which veth).
func podMAC(hostIf string) net.HardwareAddr {
	sum := sha1.Sum([]byte(hostIf))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}
