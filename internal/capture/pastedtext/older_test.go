package pastedtext

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOlder: what older programs print is read as ip's output that says the same.
func TestOlder(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"route -n", `Kernel IP routing table
Destination     Gateway         Genmask         Flags Metric Ref    Use Iface
0.0.0.0         10.0.0.1        0.0.0.0         UG    100    0        0 eth0
10.0.0.0        0.0.0.0         255.255.255.0   U     0      0        0 eth0
10.9.0.0        -               255.255.0.0     !     0      -        0 -
`, "0.0.0.0/0 via 10.0.0.1 dev eth0 metric 100\n10.0.0.0/24 dev eth0\nunreachable 10.9.0.0/16\n"},
		{"netstat -rn", `Destination     Gateway         Genmask         Flags   MSS Window  irtt Iface
default         10.0.0.1        0.0.0.0         UG        0 0          0 eth0
10.0.0.0        0.0.0.0         255.255.0.255   U         0 0          0 eth0
`, "0.0.0.0/0 via 10.0.0.1 dev eth0\n" + // and a mask that is none
			"10.0.0.0        0.0.0.0         255.255.0.255   U         0 0          0 eth0\n"},
		{"ifconfig", `eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500
        inet 10.0.0.4  netmask 255.255.255.0  broadcast 10.0.0.255
        inet6 fe80::1  prefixlen 64  scopeid 0x20<link>
        ether 00:0d:3a:00:00:01  txqueuelen 1000  (Ethernet)
        RX packets 1  bytes 2 (2.0 B)

lo: flags=73<UP,LOOPBACK,RUNNING>  mtu 65536
        inet 127.0.0.1  netmask 255.0.0.0
`, "1: eth0: <UP,BROADCAST,RUNNING,LOWER_UP,MULTICAST> mtu 1500\ninet 10.0.0.4/24 brd 10.0.0.255 scope global eth0\n" +
			"inet6 fe80::1/64 scope link\nlink/ether 00:0d:3a:00:00:01\n" +
			"2: lo: <UP,LOOPBACK,RUNNING,LOWER_UP> mtu 65536\ninet 127.0.0.1/8 scope global lo\n"},
		{"ip -br addr", "lo   UNKNOWN 127.0.0.1/8 ::1/128\neth0 UP 10.0.0.4/24 fe80::1/64\nveth0@if5 DOWN\n",
			"1: lo: <UP,LOWER_UP> mtu 1500\nlink/loopback 00:00:00:00:00:00\ninet 127.0.0.1/8 scope host lo\ninet6 ::1/128 scope global lo\n" +
				"2: eth0: <UP,LOWER_UP> mtu 1500\nlink/ether 00:00:00:00:00:00\ninet 10.0.0.4/24 scope global eth0\ninet6 fe80::1/64 scope link eth0\n" +
				"3: veth0@if5: <> mtu 1500\nlink/ether 00:00:00:00:00:00\n"},
		{"ip -br link", "eth0 UP 00:0d:3a:00:00:01 <BROADCAST,UP,LOWER_UP>\n",
			"1: eth0: <BROADCAST,UP,LOWER_UP> mtu 1500\nlink/ether 00:0d:3a:00:00:01\n"},
		{"prose", "eth0 UP is what I see.\n$ ip route\ndefault via 10.0.0.1 dev eth0\n", "default via 10.0.0.1 dev eth0\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := everywhere.parse("", []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, b := range f.Blocks {
				got.Write(b.Text)
			}
			if diff := cmp.Diff(c.want, got.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestMade: commands that add rules are read for what they leave behind.
func TestMade(t *testing.T) {
	f, saved := tablesOf(t, `#!/bin/sh
sudo iptables -t nat -A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE
iptables -P FORWARD DROP
iptables -A FORWARD -i eth0 -j ACCEPT
iptables -A FORWARD -t filter -i eth1 -j ACCEPT
iptables -I FORWARD -p tcp --dport 25 -j DROP
iptables -I FORWARD 2 -m comment --comment "no -A here" -j LOG
iptables -D FORWARD 1
ip6tables -A INPUT -p ipv6-icmp -j ACCEPT
`)
	const want = `*nat
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE
COMMIT
*filter
:FORWARD DROP [0:0]
-A FORWARD -p tcp -m tcp --dport 25 -j DROP
-A FORWARD -m comment --comment "no -A here" -j LOG
-A FORWARD -i eth0 -j ACCEPT
-A FORWARD -i eth1 -j ACCEPT
COMMIT
`
	if diff := cmp.Diff(want, saved); diff != "" {
		t.Error(diff)
	}
	if len(f.IPv6) != 1 || !f.Tables[1].Chains[0].Partial {
		t.Errorf("IPv6 %v; FORWARD may have other rules: %v", f.IPv6, f.Tables[1].Chains[0].Partial)
	}
	const deletes = "line 8: a command that may change the machine's state is not carried out: iptables -D FORWARD 1"
	if !slices.ContainsFunc(f.Assumed, func(a assumption) bool { return a.Text == deletes }) {
		t.Errorf("assumed %v", f.Assumed)
	}
}

func TestRuleCounters(t *testing.T) {
	_, saved := tablesOf(t, "$ iptables -S -v\n-P FORWARD ACCEPT -c 1 60\n-A FORWARD -s 10.0.0.0/8 -c 5 300 -j DROP\n"+
		"-A FORWARD -m comment --comment \"a -c 1 2 b\" -c 0 0 -j ACCEPT\n")
	const want = "*filter\n:FORWARD ACCEPT [0:0]\n[5:300] -A FORWARD -s 10.0.0.0/8 -j DROP\n" +
		"[0:0] -A FORWARD -m comment --comment \"a -c 1 2 b\" -j ACCEPT\nCOMMIT\n"
	if diff := cmp.Diff(want, saved); diff != "" {
		t.Error(diff)
	}
}

// TestBridges: what a bridge's own programs print.
func TestBridges(t *testing.T) {
	f, err := everywhere.parse("", []byte(`Bridge table: filter

Bridge chain: INPUT, entries: 0, policy: ACCEPT

Bridge chain: FORWARD, entries: 1, policy: DROP
-p IPv4 --ip-src 10.0.0.1 -j ACCEPT

Bridge chain: MINE, entries: 1, policy: RETURN
-i eth0 -j DROP
$ bridge fdb show
02:00:00:00:00:01 dev veth0 vlan 1 master cbr0 permanent
02:00:00:00:00:02 dev veth1 master cbr0
$ ip route
default via 10.0.0.1 dev eth0
`))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, b := range f.Blocks {
		got.WriteString(string(b.Kind) + ":\n" + strings.ReplaceAll(string(b.Text), "\n\n", "\n"))
	}
	const want = "ebtables-save:\n*filter\n:INPUT ACCEPT\n:FORWARD DROP\n-A FORWARD -p IPv4 --ip-src 10.0.0.1 -j ACCEPT\n:MINE RETURN\n-A MINE -i eth0 -j DROP\n" +
		"bridge fdb:\n02:00:00:00:00:01 dev veth0 vlan 1 master cbr0 permanent\n02:00:00:00:00:02 dev veth1 master cbr0\n" +
		"ip route:\ndefault via 10.0.0.1 dev eth0\n"
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Error(diff)
	}
}
