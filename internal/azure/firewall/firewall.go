// Package firewall writes the rules of a VM that is a firewall, and says what each is for.
package firewall

import (
	"fmt"
	"net/netip"
	"strings"

	"packetwalk.dev/internal/model/attribution"
)

// Rule leads connections with a port of the firewall to another address.
type Rule struct {
	Name     string
	Protocol string // "tcp" or "udp"
	Port     uint16
	To       netip.AddrPort
}

// LogGroup is the group of the kernel's packet log (NFLOG) that the firewall's rules log to.
const LogGroup = 41

// What the firewall's log says of a packet.
const (
	Allowed = "allow"
	Led     = "dnat"
	Denied  = "deny no-connection"
)

// logRate is how many packets a second the firewall logs at most, of each kind.
const logRate = "limit rate 200/second burst 400 packets"

// Script returns the nft script that makes the machine of an address a firewall. Like Azure Firewall it sets its own address as the source
// of what goes to destinations outside private ranges, and of what its DNAT rules lead elsewhere. It drops packets of connections that it did
// not see begin.
func Script(address netip.Addr, rules []Rule) string {
	var b strings.Builder
	line := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	log := func(what string) string {
		return fmt.Sprintf("log prefix %q group %d comment %q", what, LogGroup, "its log")
	}
	line("add table ip firewall\ndelete table ip firewall\ntable ip firewall {")
	line("\tchain dnat-rules {\n\t\ttype nat hook prerouting priority dstnat; policy accept;")
	for _, r := range rules {
		line("\t\tip daddr %s %s dport %d dnat to %s comment %q", address, r.Protocol, r.Port, r.To, "DNAT rule "+r.Name)
	}
	line("\t}\n\tchain forward {\n\t\ttype filter hook forward priority filter; policy drop;")
	line("\t\tct state established,related accept comment %q", "of a connection that was let through")
	line("\t\tct state invalid %s %s", logRate, log(Denied))
	line("\t\tct state invalid counter drop comment %q", "of no connection that began here: it came another way")
	line("\t\tct status dnat %s %s", logRate, log(Led))
	line("\t\tct status dnat counter accept comment %q", "by a DNAT rule")
	line("\t\t%s %s", logRate, log(Allowed))
	line("\t\tcounter accept comment %q", "a new connection")
	line("\t}\n\tchain source {\n\t\ttype nat hook postrouting priority srcnat; policy accept;")
	line("\t\tct status dnat masquerade comment %q", "by a DNAT rule: answers come back to the firewall")
	line("\t\tip daddr != { 10.0.0.0/8, 100.64.0.0/10, 172.16.0.0/12, 192.168.0.0/16 } masquerade comment %q",
		"destinations outside private ranges see the firewall")
	line("\t}\n}")
	return b.String()
}

// Signed says what the rules are there for.
func Signed() attribution.Writer {
	says := []attribution.Line{{Comment: "{why}", For: "firewall: {why}"}}
	chain := func(name, purpose string, role attribution.Role) attribution.Chain {
		return attribution.Chain{Table: "firewall", Name: name, For: purpose, Role: role, Rules: says}
	}
	return attribution.Writer{
		Name: "firewall", File: "internal/azure/firewall/firewall.go", Words: map[string]string{"why": ".+"},
		Chains: []attribution.Chain{
			chain("dnat-rules", "a firewall VM's DNAT rules", attribution.Balances),
			chain("forward", "what a firewall VM lets through", attribution.Policy),
			chain("source", "the source of what a firewall VM forwards", attribution.Outbound),
		},
	}
}
