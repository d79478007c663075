package redact_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/syntax/ebtables"
	"packetwalk.dev/internal/syntax/iptables"
)

// redactedText returns what a redaction makes of one file of a host.
func redactedText(t *testing.T, file, text string) string {
	t.Helper()
	c := small()
	c.Hosts[0].Outputs[file] = capture.Output{Data: []byte(text)}
	out := redacted(t, c).Hosts[0].Outputs[file]
	if out.Error != "" {
		t.Errorf("%q: %s", text, out.Error)
	}
	return string(out.Data)
}

// unknowns counts the tests and effects of rules that are not understood.
func unknowns(t *testing.T, dump string) (n int) {
	t.Helper()
	tables, err := iptables.Parse([]byte(dump))
	if err != nil {
		t.Fatal(err)
	}
	lowered, err := iptables.Lower(tables, netfilter.IPv4, netfilter.IPTablesNFT)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range lowered[0].Chains {
		for _, r := range c.Rules {
			for _, s := range r.Statements {
				switch s.(type) {
				case *netfilter.UnknownTest, *netfilter.UnknownEffect:
					n++
				}
			}
		}
	}
	return n
}

// takesDashes are options whose argument may look like an option.
var takesDashes = map[string]bool{"--bytecode": true, "--comment": true, "--helper": true, "--hex-string": true, "--label": true, "--log-prefix": true,
	"--name": true, "--nflog-prefix": true, "--object-pinned": true, "--path": true, "--rateest": true, "--rateest-name": true, "--rateest1": true,
	"--selctx": true, "--string": true, "--u32": true, "--ulog-prefix": true}

// TestRedactOptions plants a text in each option of iptables' extensions that takes one, and in options of extensions that are unknown.
// Redaction removes the text, and does not make the rule better understood.
func TestRedactOptions(t *testing.T) {
	for _, option := range []string{
		"-m bpf --bytecode %s", "-m bpf --object-pinned %s", "-m cgroup --path %s", "-m comment --comment %s", "-m connlabel --label %s",
		"-m connlabel ! --label %s --set", "-m devgroup --src-group %s", "-m devgroup --dst-group %s", "-m helper --helper %s",
		"-m hashlimit --hashlimit-upto 1/sec --hashlimit-name %s", "-m nfacct --nfacct-name %s", "-m osf --genre %s --ttl 0",
		"-m owner --uid-owner %s", "-m owner --gid-owner %s", "-m rateest --rateest %s --rateest-lt --rateest-bps 1", "-m rateest --rateest1 %s",
		"-m rateest --rateest-lt --rateest2 %s", "-m realm --realm %s", "-m recent --set --name %s", "-m set --match-set %s src",
		"-m string --algo bm --string %s", "-m string --algo bm --hex-string %s", "-m u32 --u32 %s", "-m physdev --physdev-in %s",
		"-m newmodule --dport %s", "-m newmodule --mark %s", "-m newmodule --strange 1 --other %s --third 2",
		"-m newmodule --strange %[1]s %[1]s %[1]s", "-m udp --newoption %s", "-p 132 -m newproto --chunk-types %s",
		"-j CT --helper %s", "-j CT --timeout %s", "-j IDLETIMER --timeout 5 --label %s", "-j LED --led-trigger-id %s", "-j LOG --log-prefix %s",
		"-j NFLOG --nflog-prefix %s", "-j ULOG --ulog-prefix %s", "-j RATEEST --rateest-name %s --rateest-interval 1.0 --rateest-ewmalog 2.0",
		"-j SECMARK --selctx %s", "-j SET --add-set %s src", "-j TEE --gateway 10.0.0.1 --oif %s", "-j NEWTARGET --to %s", "-j NEWTARGET --strange %s",
	} {
		for _, text := range []string{"acme", `"acme corp"`, `"acme \"corp\" acme"`, "-acme", "--acme", `"--dport acme"`, "acme=4711"} {
			for _, other := range []string{"", "-m newmodule --strange 1 "} {
				words := strings.Fields(option[:strings.Index(option, "%")])
				last := words[len(words)-1]
				if text[0] == '-' && !takesDashes[last] && !strings.Contains(option, "--strange %s") && !strings.Contains(option, "--newoption %s") {
					continue
				}
				dump := "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -s 10.1.2.3/32 " + other + fmt.Sprintf(option, text) + "\nCOMMIT\n"
				got := redactedText(t, "iptables-save.txt", dump)
				if strings.Contains(got, "acme") || strings.Contains(got, "corp") || strings.Contains(got, "4711") || strings.Contains(got, "10.1.2.3") {
					t.Errorf("%q became %q", dump, got)
				}
				if before, after := unknowns(t, dump), unknowns(t, got); after < before {
					t.Errorf("%q has %d tests that are not understood, and redacted %d: %q", dump, before, after, got)
				}
			}
		}
	}
}

// TestRedactNumberedOptions shows that numbers which are addresses or parts of a text go, and that others stay.
func TestRedactNumberedOptions(t *testing.T) {
	for option, like := range map[string]string{
		"-m u32 --u32 0xc=0xa010203":                                 `-m u32 --u32 text-\w+`,
		`-m u32 --u32 "0xc=0xa010203&&0x10=0xa010204"`:               `-m u32 --u32 text-\w+`,
		`-m bpf --bytecode "4,48 0 0 12,21 0 1 167838211,6 0 0 1"`:   `-m bpf --bytecode "?text-\w+"?`,
		"-m newmodule --address 167838211":                           `-m newmodule --address text-\w+`,
		"-m newmodule --addresses 10.1.2.3 167838211 0xa010203":      `-m newmodule --addresses text-\w+ text-\w+ text-\w+`,
		"-m string --algo bm --from 4 --to 65535 --string 167838211": `-m string --algo bm --from 4 --to 65535 --string text-\w+`,
		"-j LOG --log-prefix 4711 --log-level 7":                     `-j LOG --log-prefix text-\w+ --log-level 7`,
		"-m owner --uid-owner 1000-2000":                             `-m owner --uid-owner 1000-2000`,
		"-m devgroup --src-group 0x5/0xff":                           `-m devgroup --src-group 0x5/0xff`,
		"-m devgroup --src-group default":                            `-m devgroup --src-group default`,
		"-m realm --realm 0x5":                                       `-m realm --realm 0x5`,
		"-m helper --helper ftp-2121":                                `-m helper --helper ftp-2121`,
		"-j CT --helper tftp":                                        `-j CT --helper tftp`,
		"-m conntrack --ctstate RELATED,ESTABLISHED --ctexpire 1:9":  `-m conntrack --ctstate RELATED,ESTABLISHED --ctexpire 1:9`,
		"-p tcp -m tcp --dport 80 --tcp-flags SYN,ACK SYN -j DROP":   `-p tcp -m tcp --dport 80 --tcp-flags SYN,ACK SYN -j DROP`,
		"-p tcp -m time --timestart 10:00:00 --weekdays Mon,Tue":     `-p tcp -m time --timestart 10:00:00 --weekdays Mon,Tue`,
		"-m newmodule --a 1 -p tcp -m tcp --dport 80 -j REJECT --reject-with tcp-reset": `-m newmodule --a text-\w+ -p tcp -m tcp --dport 80 ` +
			`-j REJECT --reject-with tcp-reset`,
		"-m cluster --cluster-total-nodes 2 --cluster-local-node 1": `-m cluster --cluster-total-nodes 2 --cluster-local-node 1`,
		"-m mark --mark 0x4000/0x4000 -j MARK --set-xmark 0x1/0x1":  `-m mark --mark 0x4000/0x4000 -j MARK --set-xmark 0x1/0x1`,
	} {
		got := redactedText(t, "iptables-save.txt", "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT "+option+"\nCOMMIT\n")
		if !regexp.MustCompile(`(?m)^-A INPUT ` + like + `$`).MatchString(got) {
			t.Errorf("%s became %s", option, got)
		}
	}
}

// TestRedactOtherTexts plants a text where other programs take one.
func TestRedactOtherTexts(t *testing.T) {
	for _, tt := range []struct{ file, text, like string }{
		{"ebtables-save.txt", "*filter\n:FORWARD ACCEPT\n-A FORWARD -p IPv4 -s 0:1:2:3:4:5 --ip-src 10.1.2.3 --ip-proto tcp --ip-dport 80 " +
			"--log-level info --log-prefix \"acme corp\" --log-ip -j ACCEPT\n",
			`-p IPv4 -s \S+ --ip-src 10\.[\d.]+ --ip-proto tcp --ip-dport 80 --log-level info --log-prefix "text-\w+" --log-ip -j ACCEPT`},
		{"ebtables-save.txt", "*filter\n:FORWARD ACCEPT\n-A FORWARD --nflog-group 1 --nflog-prefix acme -j CONTINUE\n",
			`--nflog-group 1 --nflog-prefix text-\w+ -j CONTINUE`},
		{"ebtables-save.txt", "*filter\n:FORWARD ACCEPT\n-A FORWARD --string-algo bm --string -acme --strange acme acme -j DROP\n",
			`--string-algo bm --string text-\w+ --strange text-\w+ text-\w+ -j DROP`},
		{"ebtables-save.txt", "*nat\n:PREROUTING ACCEPT\n-A PREROUTING -i eth0 -j dnat --to-dst 0:1:2:3:4:5 --dnat-target ACCEPT\n",
			`-i eth0 -j dnat --to-dst [0-9a-f:]+ --dnat-target ACCEPT`},
		{"ipset.txt", "create s hash:net,iface family inet\nadd s 10.0.0.0/8,acme0\n", `create set-\w+ hash:net,iface family inet\nadd set-\w+ 10\.0\.0\.0/8,if\w+`},
		{"ip-link.json", `[{"ifname":"lo","group":"acme"},{"ifname":"eth0","group":"default"},{"ifname":"eth1","group":"7"}]`,
			`"group":"text-\w+","ifname":"lo"},{"group":"default","ifname":"eth0"},{"group":"7","ifname":"eth1"}`},
		{"ip-link.json", `[{"ifname":"eth0","linkinfo":{"info_kind":"vxlan","info_data":{"group":"239.1.1.1"}}}]`, `"group":"239\.1\.1\.1"`},
		{"qdiscs.json", `[{"link":"eth0","kind":"netem","handle":"1:","parent":"root"},{"link":"eth0","kind":"acme","handle":"2:","parent":"1:1"},` +
			`{"link":"eth0","kind":"htb","filters":[{"filter":"bpf","parent":"1:","pref":1,"program":{"attach":"tc","id":7,"name":"acme"}}]}]`,
			`"kind":"netem",.*"handle":"2:","kind":"text-\w+",.*"filters":\[{"filter":"bpf","parent":"1:","pref":1,.*"kind":"htb"`},
		{"nft.json", `{"nftables":[{"rule":{"expr":[{"counter":"acme-c"},{"quota":"acme-q"},{"limit":"acme-l"},{"ct helper":"acme-h"},{"ct timeout":"acme-t"}]}},` +
			`{"counter":{"name":"acme-c"}}]}`, `"ct helper":"text-\w+"`},
		{"nft.json", nftMatch(`{"meta":{"key":"skuid"}}`, `"acme"`), `"right":"text-\w+"`},
		{"nft.json", nftMatch(`{"meta":{"key":"skgid"}}`, `{"set":["acme",33]}`), `"set":\["text-\w+",33\]`},
		{"nft.json", nftMatch(`{"meta":{"key":"iifgroup"}}`, `"acme"`), `"right":"text-\w+"`},
		{"nft.json", nftMatch(`{"ct":{"key":"helper"}}`, `"acme"`), `"right":"text-\w+"`},
		{"nft.json", nftMatch(`{"ct":{"key":"helper"}}`, `"ftp"`), `"right":"ftp"`},
		{"nft.json", nftMatch(`{"ct":{"key":"label"}}`, `"acme"`), `"right":"text-\w+"`},
		{"nft.json", nftMatch(`{"socket":{"key":"cgroupv2","level":1}}`, `"acme.slice"`), `"right":"text-\w+"`},
		{"nft.json", nftMatch(`{"rt":{"key":"classid"}}`, `"acme"`), `"right":"text-\w+"`},
		{"nft.json", nftMatch(`{"osf":{"key":"name"}}`, `"acme"`), `"right":"text-\w+"`},
		{"nft.json", nftMatch(`{"ct":{"key":"state"}}`, `["established","related"]`), `"right":\["established","related"\]`},
		{"nft.json", `{"nftables":[{"set":{"name":"acme","table":"acme","type":"ifname","flags":["interval"],"elem":["acme0",{"elem":{"val":"acme*","comment":"acme"}}]}}]}`,
			`"elem":\["x\w+",{"elem":{"comment":"text-\w+","val":"x\w+\*"}}\],"flags":\["interval"\],"name":"set-\w+","table":"table-\w+","type":"ifname"`},
		{"nft.json", `{"nftables":[{"set":{"name":"s","type":"uid","elem":["acme",1000]}}]}`, `"elem":\["text-\w+",1000\]`},
		{"conntrack.txt", "ipv4     2 tcp      6 86399 ESTABLISHED src=10.1.2.3 dst=10.1.2.4 sport=1 dport=21 src=10.1.2.4 dst=10.1.2.3 sport=21 dport=1 " +
			"[ASSURED] mark=0 helper=acme secctx=acme use=1\n", `helper=text-\w+ secctx=text-\w+ use=1`},
		{"conntrack.txt", "ipv4     2 tcp      6 86399 ESTABLISHED src=10.1.2.3 dst=10.1.2.4 sport=1 dport=21 src=10.1.2.4 dst=10.1.2.3 sport=21 dport=1 " +
			"[ASSURED] mark=0 helper=ftp use=1\n", `helper=ftp use=1`},
	} {
		got := redactedText(t, tt.file, tt.text)
		if strings.Contains(got, "acme") || !regexp.MustCompile(tt.like).MatchString(got) {
			t.Errorf("%q became %q, want it like %s", tt.text, got, tt.like)
		}
		if strings.HasPrefix(tt.file, "ebtables") {
			if _, err := ebtables.Parse([]byte(got)); err != nil {
				t.Errorf("%q: %v", got, err)
			}
		}
	}
}

// nftMatch returns a rule set with one rule that tests one thing.
func nftMatch(left, right string) string {
	return `{"nftables":[{"rule":{"expr":[{"match":{"op":"==","left":` + left + `,"right":` + right + `}}]}}]}`
}
