package session

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/answer/drops"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
)

// routerText shows a router between two networks, which translates a destination and drops what goes to another.
const routerText = `# ip addr
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
2: a: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP group default qlen 1000
    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
    inet 10.1.0.1/24 scope global a
3: b: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP group default qlen 1000
    link/ether 02:00:00:00:00:02 brd ff:ff:ff:ff:ff:ff
    inet 10.2.0.1/24 scope global b
# ip route
10.1.0.0/24 dev a proto kernel scope link src 10.1.0.1
10.2.0.0/24 dev b proto kernel scope link src 10.2.0.1
unreachable 10.9.0.0/16
# sysctl net.ipv4.ip_forward
net.ipv4.ip_forward = 1
# iptables-save
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A PREROUTING -d 10.2.0.2/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.2.0.7:8080
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -d 10.2.0.7/32 -m conntrack --ctstate DNAT -j DROP
COMMIT
`

// TestExplain: the rule of a drop is the one that a walk of the packet meets; without one it is unexplained.
func TestExplain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "router.txt")
	if err := os.WriteFile(path, []byte(routerText), 0o600); err != nil {
		t.Fatal(err)
	}
	opened, err := OpenFile(t.Context(), File{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	host := opened.Source().Names()[0]
	network := drops.Network{Source: opened.Source(), Owners: opened.Owners}
	tuple := func(to string, port uint16) packet.Tuple {
		return packet.Tuple{Protocol: packet.TCP, Source: netip.MustParseAddr("10.1.0.2"), SourcePort: packet.Exactly(4000),
			Destination: netip.MustParseAddr(to), DestinationPort: packet.Exactly(port)}
	}
	for name, c := range map[string]struct {
		dropped, began packet.Tuple
		reason         string
		function       string
		want           string
		explained      bool
	}{
		"rule after translation": {tuple("10.2.0.7", 8080), tuple("10.2.0.2", 80), "NETFILTER_DROP", "nft_do_chain", "filter FORWARD 1: DROP", true},
		"another packet":         {tuple("10.2.0.9", 80), packet.Tuple{}, "NETFILTER_DROP", "nft_do_chain", "unexplained: a netfilter rule dropped it", false},
		"route":                  {tuple("10.9.0.1", 80), packet.Tuple{}, "NOT_SPECIFIED", "ip_error", "the route is of type unreachable", true},
		"no other reason":        {tuple("10.2.0.9", 80), packet.Tuple{}, "NOT_SPECIFIED", "some_function", "unexplained: the kernel says NOT_SPECIFIED in some_function", false},
		"the kernel's own":       {tuple("10.2.0.9", 80), packet.Tuple{}, "TCP_CSUM", "tcp_v4_rcv", "the TCP checksum is wrong", true},
	} {
		t.Run(name, func(t *testing.T) {
			d := &witness.Drop{Packet: packet.Packet{Tuple: c.dropped, TCPFlags: packet.SYN, TTL: 63}, Began: c.began, Reason: c.reason,
				Function: c.function, Arrived: 2, Count: 1}
			d.Packet.In = "a"
			cause := network.Explain(host, d)
			if !strings.Contains(cause.Text, c.want) || cause.Explained != c.explained {
				t.Errorf("explained %v: %s", cause.Explained, cause.Text)
			}
		})
	}
}
