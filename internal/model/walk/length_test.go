package walk

import (
	"testing"

	"packetwalk.dev/internal/model/packet"
)

// TestLengths: of a SYN, of what answers it, and of errors, as Linux sends them; what a program answers is not known.
func TestLengths(t *testing.T) {
	for name, c := range map[string]struct {
		p           packet.Packet
		sysctls     map[string]string
		echoes      bool
		there, back int
	}{
		"SYN":   {p: syn("10.1.0.2:4000", "10.2.0.2:80"), there: 60, back: 60},
		"reset": {p: syn("10.1.0.2:4000", "10.2.0.2:81"), there: 60, back: 40},
		"without options": {p: syn("10.1.0.2:4000", "10.2.0.2:80"),
			sysctls: map[string]string{"net.ipv4.tcp_timestamps": "0", "net.ipv4.tcp_sack": "0"}, there: 48, back: 0},
		"datagram":          {p: datagram("10.2.0.2:80", 100), there: 100, back: 0},
		"echoed":            {p: datagram("10.2.0.2:80", 100), echoes: true, there: 100, back: 100},
		"error":             {p: datagram("10.2.0.2:81", 100), there: 100, back: 128},
		"error about much":  {p: datagram("10.2.0.2:81", 1400), there: 1400, back: 576},
		"of unknown length": {p: datagram("10.2.0.2:81", 0), there: 0, back: 0},
	} {
		n, client, _, server := chain(t)
		server.listen(packet.UDP, "0.0.0.0:80")
		for k, v := range c.sysctls {
			client.Sysctls[k] = v
		}
		o := n.walk(Request{Host: "client", Packet: c.p, Echoes: c.echoes}).Outcomes[0]
		if o.End.Packet.Length != c.there || o.BackEnd == nil || o.BackEnd.Packet.Length != c.back {
			t.Errorf("%s: %d bytes there and %d back, want %d and %d", name, o.End.Packet.Length, o.BackEnd.Packet.Length, c.there, c.back)
		}
	}
}

func datagram(to string, length int) packet.Packet {
	p := syn("10.1.0.2:4000", to)
	p.Protocol, p.TCPFlags, p.Length = packet.UDP, 0, length
	return p
}

// TestFragments: one fragment alone gets through routers that do not track connections, to where the others are waited for.
func TestFragments(t *testing.T) {
	n, _, router, _ := chain(t)
	p := datagram("10.2.0.2:80", 60)
	p.More = true
	want(t, n.walk(Request{Host: "client", Packet: p}),
		"1 dropped at server: udp 10.1.0.2:4000 > 10.2.0.2:80 ttl 63 (the other fragments do not come: the host waits for all of a packet (ip_local_deliver))")
	router.iptables(nat("-A POSTROUTING -o right -j MASQUERADE"))
	want(t, n.walk(Request{Host: "client", Packet: p}),
		"1 dropped at router: udp 10.1.0.2:4000 > 10.2.0.2:80 ttl 64 (the other fragments do not come: conntrack waits for all of a packet (nf_defrag_ipv4))")
}
