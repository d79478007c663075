package iptables

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestTracking: for each extension, the kernel tracks connections exactly where the model says so.
func TestTracking(t *testing.T) {
	kerneltest.NeedRoot(t)
	runtime.LockOSThread() // for ever: the thread ends with its namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	run := func(input string, args ...string) error {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Stdin = strings.NewReader(input)
		return cmd.Run()
	}
	if err := run("", "ip", "link", "set", "lo", "up"); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, rule := range []string{
		"filter OUTPUT -m u32 --u32 0&0xf=0x5", "filter OUTPUT -m string --algo bm --string x", "filter OUTPUT -m policy --dir out --pol none",
		"filter OUTPUT -m ipvs --ipvs", "filter OUTPUT -m cgroup --cgroup 1", "filter INPUT -m socket --transparent",
		"filter OUTPUT -m time --timestart 01:00", "filter OUTPUT -m cpu --cpu 0", "filter INPUT -p tcp -m osf --genre Linux",
		"filter OUTPUT -m connbytes --connbytes 1: --connbytes-dir both --connbytes-mode packets", "filter INPUT -m realm --realm 1",
		"filter OUTPUT -m connlabel --label 1", "filter OUTPUT -m connlimit --connlimit-above 3", "filter OUTPUT -m connmark --mark 1",
		"filter OUTPUT -m helper --helper ftp", "filter OUTPUT -m state --state NEW", "filter OUTPUT -m conntrack --ctstate NEW",
		"filter OUTPUT -m cluster --cluster-total-nodes 2 --cluster-local-node 1 --cluster-hash-seed 1",
		"filter OUTPUT -p tcp -m ecn --ecn-tcp-cwr", "filter OUTPUT -p esp -m esp --espspi 1", "filter OUTPUT -p ah -m ah --ahspi 1",
		"filter OUTPUT -m hashlimit --hashlimit-above 1/s --hashlimit-name a", "filter OUTPUT -p tcp -m tcp --tcp-option 5",
		"mangle OUTPUT -j CONNSECMARK --save", "mangle OUTPUT -j CONNMARK --set-mark 1", "raw OUTPUT -j CT --notrack", "raw OUTPUT -j NOTRACK",
		"raw OUTPUT -j CT --zone 1", "raw OUTPUT -j CT --ctevents new", "filter INPUT -p tcp -j SYNPROXY",
		"mangle OUTPUT -j HMARK --hmark-tuple src --hmark-mod 2 --hmark-rnd 1", "mangle PREROUTING -j TEE --gateway 127.0.0.1",
		"mangle PREROUTING -p tcp -j TPROXY --on-port 1", "filter OUTPUT -j AUDIT --type accept",
		"filter OUTPUT -j IDLETIMER --timeout 3 --label x", "mangle OUTPUT -p tcp -j ECN --ecn-tcp-remove",
		"mangle OUTPUT -j RATEEST --rateest-name e --rateest-interval 250ms --rateest-ewmalog 1s", "nat OUTPUT -j ACCEPT",
		"nat OUTPUT -d 9.9.9.9 -j DNAT --to 1.1.1.1", "nat POSTROUTING -d 9.9.9.9 -j MASQUERADE", "nat POSTROUTING -d 9.9.9.9 -j NETMAP --to 10.0.0.0/8",
		"mangle OUTPUT -p tcp -j TCPOPTSTRIP --strip-options 2",
	} {
		table, spec, _ := strings.Cut(rule, " ")
		chain, _, _ := strings.Cut(spec, " ")
		dump := "*" + table + "\n:" + chain + " ACCEPT [0:0]\n-A " + spec + "\nCOMMIT\n"
		if run(dump, "iptables-nft-restore") != nil {
			t.Logf("not on this machine: %s", rule)
			refused++
			continue
		}
		tables, err := Parse([]byte(dump))
		if err != nil {
			t.Fatal(err)
		}
		lowered, err := Lower(tables, netfilter.IPv4, netfilter.IPTablesNFT)
		if err != nil {
			t.Fatal(err)
		}
		rules := &netfilter.Ruleset{Tables: lowered}
		rules.Index()
		tracked, known := rules.Tracks(netfilter.IPv4)
		if kernel := kerneltest.TracksConnections(t); !known || kernel != tracked {
			t.Errorf("%s: the kernel tracks: %v; predicted %v, known %v", rule, kernel, tracked, known)
		}
		for _, args := range [][]string{{"nft", "flush", "ruleset"}, {"conntrack", "-F"}} {
			if err := run("", args...); err != nil {
				t.Fatalf("%s: %v", args, err)
			}
		}
	}
	if refused > 10 {
		t.Errorf("%d rules cannot be loaded", refused)
	}
}
