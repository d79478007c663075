package iproute

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
)

// TestParseVXLAN: what iproute2 6.1 and 6.15 print of links of kind vxlan, and of their forwarding databases.
func TestParseVXLAN(t *testing.T) {
	links, err := ParseLinks([]byte(`[
		{"ifindex":3,"ifname":"flannel.1","flags":["UP"],"link_type":"ether","linkinfo":{"info_kind":"vxlan","info_data":{"id":1,
		 "local":"10.0.0.1","link":"v1","port_range":{"low":0,"high":0},"port":8472,"learning":false,"ttl":0,"df":"unset","ageing":300,"udp_csum":true}}},
		{"ifindex":4,"ifname":"vx2","link_type":"ether","linkinfo":{"info_kind":"vxlan","info_data":{"id":2,"group":"239.1.1.1","link":"lo",
		 "port_range":{"low":1000,"high":2000},"port":4789,"learning":true,"rsc":true,"tos":"0xb8","df":"set","udp_csum":false,"gbp":true}}},
		{"ifindex":5,"ifname":"vx3","link_netnsid":0,"link_type":"ether","linkinfo":{"info_kind":"vxlan","info_data":{"external":true,"id":0,
		 "local6":"fd00::1","port":4790,"learning":false,"ttl":5,"udp_csum":true,"udp_zero_csum6_tx":true}}},
		{"ifindex":9,"ifname":"vx6","link_type":"ether","linkinfo":{"info_kind":"vxlan","info_data":{"id":9,"local":"10.0.0.1",
		 "port":4789,"learning":false,"ttl":5,"udp_csum":false,"udp_zero_csum6_tx":false}}},
		{"ifindex":6,"ifname":"vx4","link_type":"ether","linkinfo":{"info_kind":"vxlan"}},
		{"ifindex":8,"ifname":"vx5","link_type":"ether","linkinfo":{"info_kind":"vxlan","info_data":{"id":3,"port_range":{"low":0,"high":0},
		 "port":4789,"ttl":0,"df":"unset","ageing":300,"reserved_bits":"0x77000000000000ff","gbp":null,"external":false,"learning":true,
		 "proxy":false,"rsc":false,"l2miss":false,"l3miss":false,"udp_csum":true,"localbypass":true}}},
		{"ifindex":7,"ifname":"eth0","xdp":{"mode":1,"prog":{"id":12}},"link_type":"ether"}]`))
	if err != nil {
		t.Fatal(err)
	}
	want := []*fib.VXLAN{
		{VNI: 1, Port: 8472, Local: addr("10.0.0.1")},
		{VNI: 2, Port: 4789, SourcePorts: [2]uint16{1000, 2000}, InheritTTL: true, TOS: 0xb8, Learning: true, Unknown: "rsc, gbp"},
		{Port: 4790, Local: addr("fd00::1"), TTL: 5, Unknown: "external, an underlay in another namespace", NoChecksum: true},
		{VNI: 9, Port: 4789, Local: addr("10.0.0.1"), TTL: 5, NoChecksum: true}, nil,
		{VNI: 3, Port: 4789, Learning: true, Unknown: "gbp"}, nil,
	}
	for i, l := range links {
		if d := cmp.Diff(want[i], l.VXLAN, compareAddresses); d != "" {
			t.Errorf("%s (-want +got)\n%s", l.Name, d)
		}
	}
	if p := links[6].Program; p != "an XDP program (id 12)" {
		t.Errorf("program %q", p)
	}
	got, err := ParseFDB([]byte(`[{"mac":"33:33:00:00:00:01","ifname":"v1","flags":["self"],"state":"permanent"},
		{"mac":"aa:bb:cc:dd:ee:01","ifname":"vx2","dst":"10.0.0.2","port":5555,"vni":7,"viaIf":"lo","flags":["self"],"state":"permanent"},
		{"mac":"aa:bb:cc:dd:ee:02","ifname":"vx2","dst":"10.0.0.3","flags":["self"],"state":""},
		{"mac":"aa:bb:cc:dd:ee:03","ifname":"vx2","nhid":5,"flags":["self"],"state":"permanent"}]`))
	if err != nil {
		t.Fatal(err)
	}
	mac := func(last byte) packet.MAC { return packet.MAC{0xaa, 0xbb, 0xcc, 0xdd, 0xee, last} }
	entries := []fib.FDBEntry{
		{Port: "vx2", MAC: mac(1), Local: true, Remote: addr("10.0.0.2"), RemotePort: 5555, VNI: 7, Link: "lo"},
		{Port: "vx2", MAC: mac(2), Remote: addr("10.0.0.3")}, {Port: "vx2", MAC: mac(3), Local: true, Unknown: "nexthop group 5"},
	}
	if d := cmp.Diff(entries, got, compareAddresses); d != "" {
		t.Errorf("forwarding database (-want +got)\n%s", d)
	}
	for _, wrong := range []string{`[{"mac":"aa:bb:cc:dd:ee:01","ifname":"v","dst":"nowhere","flags":["self"]}]`} {
		if got, err := ParseFDB([]byte(wrong)); err == nil {
			t.Errorf("%s: %v", wrong, got)
		}
	}
}
