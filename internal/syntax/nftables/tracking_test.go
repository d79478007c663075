package nftables

import (
	"os/exec"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestTracking: for each statement and object, the kernel tracks connections exactly where the model says so.
func TestTracking(t *testing.T) {
	ownNamespace(t)
	run(t, "", "ip", "link", "set", "lo", "up")
	refused := 0
	for _, table := range []string{
		"chain c { ct state new; }", "chain c { ct mark set 1; }", "chain c { notrack; }", "chain c { ct event set new; }",
		"chain c { ct label set 1; }", "chain c { meta mark set ct mark map { 1 : 2 }; }", "chain c { ct bytes > 100; }", "chain c { ct label 1; }",
		"chain c { ct zone set 1; }", "chain c { ct count 3; }", "chain c { ct original ip saddr 10.0.0.1; }", "chain c { rt classid 9; }",
		`chain c { osf name "Linux"; }`, "chain c { socket transparent 1; }", "chain c { meta secpath exists; }", "chain c { rt mtu 9; }",
		"chain c { tcp option maxseg size 1400; }", "chain c { ip id 3; }", "chain c { exthdr frag exists; }", "chain c { symhash mod 2 1; }",
		"chain c { meta cgroup 3; }", "chain c { fib saddr oif missing; }", "chain c { meta l4proto tcp synproxy mss 1460 wscale 7; }",
		"chain c { tcp option sack-perm kind 4; }", `chain c { log prefix "direct ct "; }`, "chain c { dup to 127.0.0.1; }",
		"chain c { ip saddr . ct mark { 10.0.0.1 . 3 }; }", "chain c { limit rate 1/second; }", "chain c { jhash ct mark mod 2 1; }",
		"chain c { type filter hook prerouting priority 0; meta l4proto udp tproxy to :80; }",
		"chain c { type nat hook prerouting priority 0; meta l4proto tcp redirect to :9; }",
		"chain c { type nat hook prerouting priority 0; meta l4proto tcp accept; }",
		`ct helper h { type "ftp" protocol tcp; }`, "ct timeout h { protocol tcp; policy = { established : 100 }; }",
		"ct expectation h { protocol tcp; dport 9; timeout 1h; size 2; }", "synproxy s { mss 1460; wscale 7; }", "counter n { }",
		"set s { type inet_service; flags dynamic; }\nchain c { add @s { tcp dport ct count 3 }; }",
		"set s { type mark; flags dynamic; }\nchain c { add @s { ct mark }; }", "set s { type mark; flags dynamic; }\nchain c { add @s { mark }; }",
		"map m { type ipv4_addr : mark; flags dynamic; }\nchain c { update @m { ip saddr : mark }; }",
		"map m { type ipv4_addr : mark; flags dynamic; }\nchain c { update @m { ip saddr : ct mark }; }",
	} {
		run(t, "flush ruleset", "nft", "-f", "-")
		load := exec.CommandContext(t.Context(), "nft", "-f", "-")
		load.Stdin = strings.NewReader("table ip t {\n" + table + "\n}\n")
		if load.Run() != nil {
			t.Logf("not on this machine: %s", table)
			refused++
			continue
		}
		parsed, err := Parse(run(t, "", "nft", "-j", "list", "ruleset"))
		if err != nil {
			t.Fatal(err)
		}
		tables, err := Lower(parsed)
		if err != nil {
			t.Fatal(err)
		}
		rules := &netfilter.Ruleset{Tables: tables}
		rules.Index()
		tracked, known := rules.Tracks(netfilter.IPv4)
		if kernel := kerneltest.TracksConnections(t); !known || kernel != tracked {
			t.Errorf("%s: the kernel tracks: %v; predicted %v, known %v", table, kernel, tracked, known)
		}
		run(t, "", "conntrack", "-F")
	}
	if refused > 10 {
		t.Errorf("%d tables cannot be loaded", refused)
	}
}
