package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestPastedCases walks through small texts, each made from a public question whose answer was wrong. The right answers were tried with the
// rules loaded into a namespace.
func TestPastedCases(t *testing.T) {
	for _, c := range []struct {
		name, args string
		status     int
		says       []string
		never      []string
	}{
		{"nft-two-tables-prose", "--from 10.1.0.7 --to 203.0.113.9:443", 0,
			[]string{"the destination sees nothing: dropped on the node by filter forward policy"}, nil},
		{"script-branches", "--from 10.0.0.5 --to 198.51.100.1:80", 3,
			[]string{"the sender's own address, 10.0.0.5:", "unless one of the lines 3, 5, 8-9, 13, which were not read, changes it"},
			[]string{"203.0.113.9fi", "MASQUERADEelse"}},
		{"script-errexit", "--from 10.0.0.7 --to 192.0.2.1:80", 3,
			[]string{"line 4: behind line 3, which ends the script if it fails (set -e)", "unless line 4, which was not read, changes it"}, nil},
		{"script-options", "--from 10.0.0.7 --to 192.0.2.1:80", 0, []string{"read all 9 lines", "the sender's own address, 10.0.0.7:"},
			[]string{"the reply does not arrive"}},
		{"script-noexec", "--from 10.0.0.7 --to 192.0.2.1:80", 3, []string{"unless line 3, which was not read, changes it"}, nil},
		{"script-continued", "--from 10.2.0.7 --to 8.8.8.8:443", 0,
			[]string{"the destination sees nothing: rejected on the node by filter FORWARD 1: REJECT"}, nil},
		{"script-variables", "--from 10.2.0.7 --to 8.8.8.8:443", 3,
			[]string{"sees 10.1.0.4:", "provided that nat POSTROUTING 1 matches ($WAN stands for an interface)"}, nil},
		{"script-conditions", "--from 10.2.0.7 --to 8.8.8.8:443", 3,
			[]string{"sees 10.1.0.4:", "unless one of the lines 12-14, which were not read, changes it"}, nil},
		{"save-cut-off", "--from 10.2.0.7 --to 8.8.8.8:443", 3,
			[]string{"unless line 24, which was not read, changes it"}, nil},
		{"iprule-not", "--from node/node --to 203.0.113.9:443", 0,
			[]string{"dev wg0 (table 51820: default)", "the destination sees the sender's own address, 10.0.0.1:"}, []string{"192.168.178.48:"}},
		{"ip6-rule-family", "--from fd00:2::5 --to [2001:db8::9]:443", 0,
			[]string{"via fe80::1 dev eth0 (table main: default)", "leaves the captured network through eth0"}, []string{"no route"}},
		{"ip-commands-ignored", "--from 10.0.0.5 --to 203.0.113.9:443", 0,
			[]string{"via 198.51.100.1 dev eth1 (table 100: default)", "the destination sees 198.51.100.10:", "assuming its commands were run"}, nil},
		{"nft-add-commands", "--from 10.0.0.23 --to 203.0.113.9:443", 0,
			[]string{"the destination sees 192.0.2.10:", "nat postrouting 1: oifname \"eth0\" masquerade"}, nil},
		{"redacted-gateway", "--from 172.17.0.2 --to 203.0.113.9:443", 0,
			[]string{"via x.x.x.x dev eth0", "because nat POSTROUTING 1: MASQUERADE"}, []string{"no route", "172.17.0.1:"}},
		{"conntrack-alone", "--from 192.0.2.5:47458 --to 192.0.2.10:31313", 0,
			[]string{"192.0.2.10:31313 → 10.244.1.7:80", "the destination sees 10.244.0.1:5123, because of the connection's NAT mapping"}, []string{"no rule translates"}},
		{"nft-fib-local", "--from 203.0.113.5 --to 198.51.100.7:8080", 3,
			[]string{"198.51.100.7:8080 → 172.17.0.2:80", "assuming 198.51.100.7 is one of them, since nat DOCKER 1 is for its port 8080",
				"the sender's own address, 203.0.113.5:"}, nil},
		{"ipvs-without-header", "--from 198.51.100.5 --to 10.110.76.40:80", 3,
			[]string{"IPVS may take it for its service tcp 10.110.76.40:80"}, nil},
		{"nft-chain-fragment", "--from 192.168.122.5 --to 203.0.113.9:443", 0,
			[]string{"the destination sees 192.0.2.10:", "POSTROUTING 1: ip saddr 192.168.122.0/24 ip daddr != 192.168.122.0/24"}, nil},
		{"istio-star-space", "--from 10.244.2.9 --to 10.244.1.5:80", 0,
			[]string{"0x0 → 0x539  by mangle ISTIO_INBOUND 1"}, []string{"by nat ISTIO_INBOUND 1", "differently"}},
		{"tabs-in-rule", "--from 10.244.1.5 --to 203.0.113.9:443", 0,
			[]string{"the destination sees nothing: dropped on the node by filter FORWARD 1"}, nil},
		{"mark-cleared", "--from 10.1.0.5 --to 203.0.113.9:443", 0,
			[]string{"the sender's own address, 10.1.0.5:", "mark    0x40000 → 0x0  by mangle POSTROUTING 1",
				"mangle POSTROUTING 1 cleared the mark 0x40000 that filter FORWARD 1 had set"}, nil},
		{"stale-entry-reason", "--from 10.12.0.14:43145 --to 10.15.240.10:53 --proto udp", 0,
			[]string{"the sender's own address, 10.12.0.14:43145, because its connection exists, without a mapping",
				"nat PREROUTING 1 translates new connections only"},
			[]string{"no rule translates", "assuming the packet starts a new one"}},
		{"impossible-hook", "--from 10.244.1.5 --to 203.0.113.9:443", 3,
			[]string{"because nat MY-MASQ 1: MASQUERADE", "choice  nat POSTROUTING 1: -j MY-MASQ"}, []string{"nat PREROUTING 1"}},
		{"nft-unreadable-part", "--from 10.1.0.5 --to 203.0.113.9:22", 0,
			[]string{"the destination sees the sender's own address, 10.1.0.5:"}, nil},
		{"xt-match-jump", "--from 10.89.0.5 --to 203.0.113.9:443", 0,
			[]string{"the destination sees the sender's own address, 10.89.0.5:"}, []string{"it is unknown whether the destination sees"}},
		{"redacted-snat", "--from 10.0.0.5 --to 203.0.113.9:443", 0,
			[]string{"the destination sees x.x.x.x:", "because nat POSTROUTING 1: SNAT"}, nil},
		{"numbered-list", "--from 10.0.1.5 --to 203.0.113.9:443", 0,
			[]string{"the destination sees 192.0.2.10:", "because nat POSTROUTING 2: SNAT"}, nil},
		{"reply-not-translated-back", "--from 10.244.1.5 --to 10.96.3.45:53 --proto udp", 0,
			[]string{"the reply leaves as 169.254.20.10:53, not as 10.96.3.45:53, which the sender asked: it discards the reply (raw OUTPUT 1 takes it out of tracking)"}, nil},
		// An account of every line.
		{"unread-line", "--from 10.0.0.5 --to 203.0.113.9:443", 3,
			[]string{"read 2 of 3 lines; not read: 2", ", unless line 2, which was not read, changes it"}, nil},
		{"unread-other-family", "--from 10.0.0.5 --to 203.0.113.9:443", 0,
			[]string{"read 2 of 3 lines; not read: 2"}, []string{"unless line"}},
		{"two-hosts", "--at HostB --from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: Host A, Host B"}, nil},
		{"two-hosts-unnamed", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: line-1, line-4"}, nil},
		{"two-hosts-unnamed", "--at line-4 --from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"via 198.51.100.1 dev ens5"}, nil},
		{"two-hosts", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: Host A, Host B; name one with --at"}, nil},
		{"two-hosts-prompts", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: Machine A, Machine B"}, nil},
		// Commands, and what people write between outputs.
		{"route-replaced", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 6, which was not read", "is not carried out: ip route replace 203.0.113.0/24"}, nil},
		{"script-after", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"is not carried out: ./fw.sh", "unless line 18"}, nil},
		{"script-between", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"read all 35 lines", "the destination sees 192.0.2.10:"}, nil},
		{"inserted-after", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"dropped on the node by filter FORWARD 1"}, nil},
		{"nft-table-deleted", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"read all 17 lines", "the sender's own address"}, []string{"dropped"}},
		{"heredoc", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"read all 23 lines", "dropped on the node by filter FORWARD policy: DROP"}, nil},
		{"ip-json", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"read all 14 lines", "via 192.0.2.1 dev eth0 (table main: default)"}, nil},
		{"ip-json-table", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"via 192.0.2.1 dev eth0 (table wan: default)", "the destination sees 192.0.2.10:"}, nil},
		{"packets-seen", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"read all 18 lines"}, nil},
		{"packet-blocked", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 19"}, nil},
		{"change-failed", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"read all 18 lines"}, nil},
		{"one-line", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"read the one line"}, nil},
		{"route-added-then-listed", "--from node/node --to 203.0.113.9:443", 0, []string{"via 192.0.2.1 dev eth0 (table main: default)"}, nil},
		{"two-commands-on-a-line", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"is not carried out: ip route del default", "unless line 18"}, nil},
		{"policy-on-a-line", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"dropped on the node by filter FORWARD policy: DROP"}, nil},
		{"restored", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 18"}, nil},
		{"shell-c", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 18"}, nil},
		{"link-enslaved", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 18"}, nil},
		{"sysctl-file", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 18"}, nil},
		{"command-failed", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 6", "a command failed, which is taken as run: RTNETLINK answers"}, nil},
		{"prose-below-ping", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 22"}, nil},
		{"nft-dormant", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"the sender's own address, 10.0.0.5:"}, nil},
		{"nft-flush-iptables", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 19"}, nil},
		{"nft-commented-rule", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"the destination sees 192.0.2.10:", "read all 7 lines"}, nil},
		{"nft-file", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"read all 9 lines", "the sender's own address, 10.0.0.5:"}, nil},
		{"nft-loaded", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"is not carried out: nft -f /etc/nftables.conf", "unless line 18"}, nil},
		{"nft-loaded-shown", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"the destination sees 192.0.2.10:", "read all 9 lines"}, nil},
		{"continued-lines", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"dropped on the node by filter FORWARD 1: DROP", "read all 22 lines"}, nil},
		{"neighbours", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"the destination sees 192.0.2.10:", "read all 21 lines"}, nil},
		{"short-delete", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"is not carried out: ip r d default", "unless line 4"}, nil},
		{"glued-chain", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 18"}, nil},
		{"tc-filter", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 20"}, nil},
		{"long-options", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"dropped on the node by filter FORWARD 1"}, nil},
		{"script-comments", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"read all 4 lines", "the destination sees 192.0.2.10:"}, []string{"dropped"}},
		{"nft-script-comment", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"the destination sees 192.0.2.10:", "read all 5 lines"}, nil},
		{"comment-or-prompt", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 4", "a comment, or a command at a prompt; whether it was run is unknown: iptables -A FORWARD -s 10.0.0.0/24 -j DROP"}, []string{"dropped"}},
		{"script-in-configmap", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"the destination sees 192.0.2.10:"}, nil},
		{"root-prompt-after-save", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"dropped on the node by filter FORWARD policy: DROP"}, nil},
		{"root-prompt-flush", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless one of the lines 9-10"}, nil},
		{"root-prompt-other-changes", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless one of the lines 6-7"}, nil},
		{"rules-omitted", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 5"}, []string{"mangle FORWARD", "dropped on the node"}},
		{"rules-omitted-in-brackets", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 4", "the destination sees 192.0.2.10:"}, nil},
		{"rules-snipped", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless one of the lines 6, 11"}, nil},
		{"rules-snipped-from-listing", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 4"}, nil},
		{"number-gap", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless one of the lines 3-4"}, nil},
		{"number-gap-filtered", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 2"}, nil},
		{"legacy-warning", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless one of the lines 2, 7"}, nil},
		{"chains-unreached", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless one of the lines 3, 7, 11, 15"}, nil},
		{"nft-chain-listed", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 4"}, nil},
		{"policy-of-unknown-table", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 8"}, nil},
		{"expected-and-actual", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 7"}, nil},
		{"nft-include", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 3"}, nil},
		{"forwarding-off", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"it does not forward (net.ipv4.ip_forward is 0)"}, nil},
		{"forwarding-off-without-routes", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"it does not forward (net.ipv4.ip_forward is 0)"}, nil},
		{"vrf", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless one of the lines 9-10"}, nil},
		{"nft-and-iptables-save", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"the destination sees 192.0.2.10:"}, []string{"legacy"}},
		{"network-policy", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless"}, nil},
		{"grep-v", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless line 1"}, nil},
		{"head", "--from 10.0.0.5 --to 203.0.113.9:443", 3, []string{"unless one of the lines 1, 7"}, nil},
		{"hosts-by-prompt", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: n1, n2; name one with --at"}, nil},
		{"hosts-by-prompt", "--at n2 --from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"the destination sees 192.0.2.20:"}, nil},
		{"hosts-by-prompt", "--at n3 --from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: n1, n2"}, nil},
		{"hosts-by-debug", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: aks-nodepool1-1, aks-nodepool1-2"}, nil},
		{"hosts-by-node-shell", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: aks-1, aks-2"}, nil},
		{"hosts-by-log-prefix", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: dump-x7x2k, dump-p99qz"}, nil},
		{"hosts-by-journal", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: node-a, node-b"}, nil},
		{"hosts-by-journal", "--at node-b --from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"dropped on node node-b by filter FORWARD policy: DROP"}, nil},
		{"hosts-by-ansible", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: node-a, node-b"}, nil},
		{"hosts-by-loop", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: node1, node2"}, nil},
		{"hosts-by-comment", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: worker-1, worker-2"}, nil},
		{"hosts-by-address", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: 10.1.0.4, 10.1.0.5"}, nil},
		{"hosts-by-bold-name", "--from 10.0.0.5 --to 203.0.113.9:443", 2, []string{"the text shows several hosts: worker-1, worker-2"}, nil},
		{"jira", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"dropped on the node by filter FORWARD 1: DROP", "read all 8 lines"}, nil},
		{"colour-of-grep", "--from 10.0.0.5 --to 203.0.113.9:443", 0, []string{"dropped on the node by filter FORWARD 1: DROP"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.HasPrefix(c.name, "nft-") || strings.HasPrefix(c.name, "xt-") {
				if _, err := exec.LookPath("nft"); err != nil {
					kerneltest.Missing(t, "nft")
				}
			}
			path := filepath.Join("testdata", "pasted", c.name+".txt")
			status, out := runMain(t, append([]string{"walk", "--snapshot", path}, strings.Fields(c.args)...)...)
			if status != c.status {
				t.Errorf("exit status %d, want %d", status, c.status)
			}
			for _, s := range c.says {
				if !strings.Contains(out, s) {
					t.Errorf("does not say %q", s)
				}
			}
			for _, s := range c.never {
				if strings.Contains(out, s) {
					t.Errorf("says %q", s)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}

// runMain runs one command line and returns its exit status and what it wrote.
func runMain(t *testing.T, args ...string) (status int, out string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	status = Main(args, Streams{In: os.Stdin, Out: f, Err: f})
	text, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return status, string(text)
}
