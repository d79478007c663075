package cni

import (
	"crypto/sha1"
	"encoding/hex"
	"net"
	"net/netip"
)

// Prefixes of the names of the node's ends of pods' veths.
const (
	azureVeth   = "azv"
	kubenetVeth = "veth" // what kubenet's ebtables rules go by
)

// hostIfName returns the name of the node's end of a pod's veth, a prefix and hexadecimal digits of the key's SHA-1: azv and the first 11
// as Azure CNI derives it, veth and the first 8 with kubenet, whose bridge plugin takes as many at random. [hostIfKey] makes the key.
func hostIfName(mode netMode, key string) string {
	sum := sha1.Sum([]byte(key))
	digits := hex.EncodeToString(sum[:])
	if mode == modeKubenet {
		return kubenetVeth + digits[:8]
	}
	return azureVeth + digits[:11]
}

// hostIfKey returns what an attachment's host interface is named after: namespace.pod in transparent mode (default.nginx becomes
// azvc440f455693), and network name, container and interface together in the other modes, or where the runtime does not say which pod it
// is. A pod's interfaces other than eth0 add their own name, so that a pod with two attachments has two names.
func hostIfKey(mode netMode, network, containerID, ifName, podNamespace, podName string) string {
	if mode != modeTransparent || podNamespace == "" || podName == "" {
		return network + containerID + ifName
	}
	key := podNamespace + "." + podName
	if ifName != "eth0" {
		key += "." + ifName
	}
	return key
}

// podMAC returns the address of a pod's interface: locally administered, and derived from the host interface's name alone, so that lost
// state can be rebuilt from what the kernel has (which neighbour belongs to which veth).
func podMAC(hostIf string) net.HardwareAddr {
	sum := sha1.Sum([]byte(hostIf))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

// addressMAC returns an interface's link-layer address made of its IPv4 address, as CNI's reference bridge had it when kubenet used it:
// 0a:58 and the address.
func addressMAC(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}
}

func (n *node) vethPrefix() string {
	if n.Mode == modeKubenet {
		return kubenetVeth
	}
	return azureVeth
}
