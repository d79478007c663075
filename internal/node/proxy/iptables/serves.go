package iptables

import (
	"net/netip"
	"strconv"
	"strings"

	"packetwalk.dev/internal/node/service"
)

// Serves reports whether the rules of a service proxy with iptables are in force and lead to all ports, which have endpoints, by their
// cluster IPs. nat is table nat as iptables-save prints it. kube-proxy writes all its rules of a table in one transaction.
func Serves(nat []byte, ports []service.Port) bool {
	type key struct {
		ip       netip.Addr
		protocol string
		port     uint16
	}
	served := map[key]bool{}
	called := map[string]bool{}
	for line := range strings.Lines(string(nat)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "-A" {
			continue
		}
		option := func(name string) string {
			for i := 2; i+1 < len(f); i++ {
				if f[i] == name && f[i-1] != "!" {
					return f[i+1]
				}
			}
			return ""
		}
		target := option("-j")
		if target == chainServices {
			called[f[1]] = true
		}
		if f[1] != chainServices || !strings.HasPrefix(target, prefixCluster) && !strings.HasPrefix(target, prefixLocal) {
			continue
		}
		ip, err := netip.ParsePrefix(option("-d"))
		port, err2 := strconv.ParseUint(option("--dport"), 10, 16)
		if err == nil && err2 == nil && ip.IsSingleIP() {
			served[key{ip.Addr(), option("-p"), uint16(port)}] = true
		}
	}
	if !called["PREROUTING"] || !called["OUTPUT"] {
		return false
	}
	for i := range ports {
		p := &ports[i]
		if !served[key{p.ClusterIP, p.Protocol.Lower(), p.Port}] {
			return false
		}
	}
	return true
}
