package excerpt

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/writers"
)

func TestVirtualServices(t *testing.T) {
	const heading = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
	for text, want := range map[string]string{
		heading: "",
		heading + "TCP  10.96.0.10:53 rr\n  -> 10.1.1.1:53 Masq 1 0 0\nUDP  [fd00::a]:53 rr persistent 10800\nFWM  5 wlc\n": "service tcp 10.96.0.10:53, " +
			"service udp [fd00::a]:53, service for the mark 0x5",
		heading + "TCP  dns.example:domain rr\n": "not read",
	} {
		src, err := Read(writers.Book(&snapshot.Objects{}), nil, "n", []byte(text+"$ ip route\ndefault via 10.0.0.1 dev eth0\n"))
		if err != nil {
			t.Fatal(err)
		}
		h, err := src.Host("node/n")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range h.VirtualServices {
			got = append(got, h.VirtualServices[i].String())
		}
		said := strings.Join(got, ", ")
		if h.VirtualServices == nil {
			said = "not read"
		}
		if said != want || h.Missing[snapshot.IPVS] != "" {
			t.Errorf("%q: %s, missing %q", text, said, h.Missing[snapshot.IPVS])
		}
	}
}
