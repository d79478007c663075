package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/node/cni/ebrules"
)

// confJSON returns a valid configuration with fields replaced (a nil value removes the field).
func confJSON(t testing.TB, change map[string]any) []byte {
	t.Helper()
	conf := map[string]any{
		"cniVersion": "1.1.0", "name": "azure", "type": "packetwalk-cni", "mode": "bridge", "stateDir": "/run/test",
		"ipam": map[string]any{"type": "azure-vnet-ipam", "addresses": []string{"10.13.76.5-10.13.76.34"}, "subnet": "10.13.76.0/24",
			"gateway": "10.13.76.1"},
	}
	ipam := conf["ipam"].(map[string]any)
	for k, v := range change {
		m, key := conf, k
		if rest, ok := strings.CutPrefix(k, "ipam."); ok {
			m, key = ipam, rest
		}
		if m[key] = v; v == nil {
			delete(m, key)
		}
	}
	data, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func noFile(string) ([]byte, error) { return nil, fs.ErrNotExist }

func TestParseConfig(t *testing.T) {
	c, err := parseConfig(confJSON(t, map[string]any{"mode": nil, "ipam.type": nil, "ipam.gateway": nil, "stateDir": nil}), noFile)
	if err != nil {
		t.Fatal(err)
	}
	want := config{
		CNIVersion: "1.1.0", Name: "azure", Mode: modeBridge, Bridge: "azure0", Master: "eth0", StateDir: "/run/packetwalk-cni",
		Pool:   []addrRange{{netip.MustParseAddr("10.13.76.5"), netip.MustParseAddr("10.13.76.34")}},
		Subnet: netip.MustParsePrefix("10.13.76.0/24"), Gateway: netip.MustParseAddr("10.13.76.1"),
	}
	if diff := cmp.Diff(want, *c, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestParseConfigAddressFile(t *testing.T) {
	read := func(path string) ([]byte, error) {
		if path != "/etc/nic" {
			return nil, fs.ErrNotExist
		}
		return []byte("# the NIC's secondary addresses\n10.13.76.20\n\n10.13.76.8/30 # four\n"), nil
	}
	c, err := parseConfig(confJSON(t, map[string]any{"ipam.addresses": nil, "ipam.addressFile": "/etc/nic"}), read)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.Pool); got != "[{10.13.76.8 10.13.76.11} {10.13.76.20 10.13.76.20}]" {
		t.Error(got)
	}
}

func TestParseConfigKubenet(t *testing.T) {
	c, err := parseConfig(confJSON(t, map[string]any{"mode": "kubenet", "ipam": map[string]any{"subnet": "192.168.1.0/29"},
		"hairpinMode": false}), noFile)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.Bridge+" ", c.Gateway, c.Pool, c.Promiscuous, c.Hairpin); got != "cbr0 192.168.1.1 [{192.168.1.2 192.168.1.6}] true false" {
		t.Error(got)
	}
	c, err = parseConfig(confJSON(t,
		map[string]any{"mode": "kubenet", "ipam": map[string]any{"subnet": "192.168.1.0/29", "gateway": "192.168.1.4"}}), noFile)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.Pool, c.Hairpin); got != "[{192.168.1.1 192.168.1.3} {192.168.1.5 192.168.1.6}] true" {
		t.Error(got)
	}
}

// TestParseConfigCNS: with Azure CNI Overlay every address of the node's part is a pod's.
func TestParseConfigCNS(t *testing.T) {
	c, err := parseConfig(confJSON(t, map[string]any{"mode": "transparent", "ipam": map[string]any{"type": "azure-cns", "mode": "v4overlay",
		"addresses": []string{"10.244.3.0/24"}, "subnet": "10.244.0.0/16"}}), noFile)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(c.Subnet, c.Pool, c.Gateway.IsValid()); got != "10.244.0.0/16 [{10.244.3.0 10.244.3.255}] false" {
		t.Error(got)
	}
}

func TestParseConfigFaults(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change map[string]any
		want   []string
		code   uint
	}{
		{"mode", map[string]any{"mode": "tunnel"}, []string{`mode: "tunnel" is unknown; write one of bridge, kubenet, transparent`}, 7},
		{"wrong type", map[string]any{"master": 7}, []string{"master: number where string is wanted"}, 6},
		{"names", map[string]any{"bridge": "a-name-that-is-too-long", "master": "a/b"}, []string{"bridge: ", "master: "}, 7},
		{"same", map[string]any{"bridge": "eth0"}, []string{"bridge: \"eth0\" is the master's name too"}, 7},
		{"state", map[string]any{"stateDir": "run"}, []string{"stateDir: "}, 7},
		{"ipam type", map[string]any{"ipam.type": "dhcp"}, []string{"ipam.type: "}, 7},
		{"subnet", map[string]any{"ipam.subnet": nil}, []string{"ipam.subnet: is missing"}, 7},
		{"unaligned", map[string]any{"ipam.subnet": "10.13.76.5/24"}, []string{"such as 10.13.76.0/24"}, 7},
		{"family", map[string]any{"ipam.subnet": "fd00::/64"}, []string{"ipam.subnet: fd00::/64 is not IPv4"}, 7},
		{"gateway", map[string]any{"ipam.gateway": "10.0.0.1"}, []string{"ipam.gateway: 10.0.0.1 is outside the subnet 10.13.76.0/24"}, 7},
		{"no addresses", map[string]any{"ipam.addresses": []string{}}, []string{"ipam.addresses: is empty"}, 7},
		{"addresses", map[string]any{"ipam.addresses": []string{"x", "10.13.76.9-10.13.76.5", "10.13.77.1", "10.13.76.1-10.13.76.3",
			"10.13.76.2"}},
			[]string{"ipam.addresses[0]: ", "ipam.addresses[1]: ", "write 10.13.76.5-10.13.76.9", "ipam.addresses[2]: \"10.13.77.1\" is outside",
				"ipam.addresses[3]: ", "the subnet's gateway", "10.13.76.2 is listed twice"}, 7},
		{"broadcast", map[string]any{"ipam.addresses": []string{"10.13.76.200-10.13.76.255"}}, []string{"last address"}, 7},
		{"file", map[string]any{"ipam.addresses": nil, "ipam.addressFile": "/none"}, []string{"ipam.addressFile: file does not exist"}, 7},
		{"both", map[string]any{"ipam.addressFile": "/none"}, []string{"ipam.addressFile: stands beside"}, 7},
		{"huge", map[string]any{"ipam.subnet": "10.0.0.0/8", "ipam.gateway": nil, "ipam.addresses": []string{"10.1.0.0-10.200.0.0"}},
			[]string{"the most is 65536"}, 7},
		{"prevResult", map[string]any{"prevResult": map[string]any{"ips": 3}}, []string{"prevResult: "}, 7},
		{"kubenet's settings", map[string]any{"promiscMode": true, "hairpinMode": false},
			[]string{"promiscMode: is a setting of mode kubenet", "hairpinMode: "}, 7},
		{"kubenet's addresses", map[string]any{"mode": "kubenet", "ipam.type": "host-local"},
			[]string{"ipam.addresses: goes with ipam.type azure-vnet-ipam"}, 7},
		{"kubenet's range", map[string]any{"mode": "kubenet", "ipam.type": nil, "ipam.addresses": nil, "ipam.subnet": nil},
			[]string{"the node's pod range (spec.podCIDR)"}, 7},
		{"kubenet's gateway", map[string]any{"mode": "kubenet", "ipam.type": nil, "ipam.addresses": nil, "ipam.gateway": "10.13.76.255"},
			[]string{"an end of the subnet"}, 7},
		{"overlay's", map[string]any{"ipam.type": "azure-cns", "ipam.addresses": []string{"10.244.0.0/24"}},
			[]string{"ipam.gateway: goes with ipam.type azure-vnet-ipam", "azure-cns goes with mode transparent",
				"\"10.244.0.0/24\" is outside the subnet 10.13.76.0/24"}, 7},
		{"all at once", map[string]any{"mode": "x", "stateDir": "y", "ipam.subnet": "z"}, []string{"mode: ", "stateDir: ", "ipam.subnet: "}, 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseConfig(confJSON(t, tt.change), noFile)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
			var e *types.Error
			if errors.As(cniError(err), &e); e.Code != tt.code {
				t.Errorf("code %d, want %d", e.Code, tt.code)
			}
		})
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add(confJSON(f, nil))
	f.Add(confJSON(f, map[string]any{"mode": "transparent", "ipam.addresses": []string{"10.13.76.8/29", "10.13.76.5"}}))
	f.Add(confJSON(f, map[string]any{"mode": "kubenet", "ipam": map[string]any{"subnet": "192.168.1.0/29", "gateway": "192.168.1.4"}}))
	f.Add([]byte(`{"name":"a","ipam":{"subnet":"0.0.0.0/0","addresses":["0.0.0.0-255.255.255.255"]}}`))
	f.Add([]byte(`{"cniVersion":"0.4.0","name":"a","prevResult":{"ips":[{"version":"4","address":"10.0.0.1/24"}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfig(data, noFile)
		if err != nil {
			return
		}
		if n := poolSize(c.Pool); n < 1 || n > maxPool {
			t.Fatalf("pool of %d", n)
		}
		// What was accepted can be handed out, each address once, and never the gateway.
		var s state
		for i := 0; i < 4; i++ {
			a, ok := pick(c.Pool, &s, nil)
			if !ok {
				break
			}
			if a == c.Gateway || !c.Subnet.Contains(a) || s.find(a.String(), "", "") != nil {
				t.Fatalf("handed out %s", a)
			}
			s.add(attachment{ContainerID: a.String(), Address: a})
		}
	})
}

func TestPick(t *testing.T) {
	a := func(last int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(last)}) }
	pool := []addrRange{{a(5), a(6)}, {a(9), a(9)}}
	s := &state{}
	next := func() string {
		addr, ok := pick(pool, s, []netip.Addr{a(4)})
		if !ok {
			return "none"
		}
		s.add(attachment{ContainerID: addr.String(), Address: addr})
		return addr.String()
	}
	release := func(last int) { s.forget(attachment{Address: a(last)}, true) }
	var got []string
	got = append(got, next(), next())
	release(6)
	release(5)
	got = append(got, next(), next()) // .9 was never given out; then .6, released before .5
	release(9)
	got = append(got, next(), next(), next()) // .5 before .9
	if want := []string{"10.0.0.5", "10.0.0.6", "10.0.0.9", "10.0.0.6", "10.0.0.5", "10.0.0.9", "none"}; !cmp.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if addr, ok := pick([]addrRange{{a(4), a(4)}}, &state{}, []netip.Addr{a(4)}); ok {
		t.Errorf("handed out the node's own address %s", addr)
	}
}

// The vector is Azure CNI's own, from its documentation of transparent mode.
func TestHostInterface(t *testing.T) {
	for _, tt := range []struct{ key, want string }{
		{hostIfKey(modeTransparent, "azure", "c1", "eth0", "default", "nginx"), "azvc440f455693"},
		{hostIfKey(modeBridge, "azure", "c1", "eth0", "default", "nginx"), hostIfName(modeBridge, "azurec1eth0")},
		{hostIfKey(modeTransparent, "azure", "c1", "eth0", "", ""), hostIfName(modeBridge, "azurec1eth0")},
		{hostIfKey(modeTransparent, "azure", "c1", "net1", "default", "nginx"), hostIfName(modeTransparent, "default.nginx.net1")},
	} {
		got := tt.key
		if !strings.HasPrefix(got, "azv") {
			got = hostIfName(modeTransparent, got)
		}
		if got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.key, got, tt.want)
		}
	}
	if mac := podMAC("azvc440f455693"); mac[0]&3 != 2 {
		t.Errorf("%s is not a locally administered unicast address", mac)
	}
}

func TestEbtablesRules(t *testing.T) {
	eth, pod := net.HardwareAddr{0, 0xd, 0x3a, 0x28, 0xbd, 2}, net.HardwareAddr{0xee, 0xaf, 0xf8, 0x66, 0x59, 0xbd}
	rules := append(ebrules.Node("eth0", eth, []netip.Addr{netip.MustParseAddr("10.13.76.4")}),
		ebrules.Pod("eth0", netip.MustParseAddr("10.13.76.26"), pod)...)
	want := `*nat
-A POSTROUTING -s Unicast -o eth0 -j snat --to-src 00:0d:3a:28:bd:02 --snat-arp --snat-target ACCEPT
-A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.13.76.4 -j arpreply --arpreply-mac 00:0d:3a:28:bd:02 --arpreply-target DROP
-A PREROUTING -p ARP -i eth0 --arp-op Reply -j dnat --to-dst ff:ff:ff:ff:ff:ff --dnat-target ACCEPT
-A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.13.76.26 -j arpreply --arpreply-mac ee:af:f8:66:59:bd --arpreply-target DROP
-A PREROUTING -p IPv4 -i eth0 --ip-dst 10.13.76.26 -j dnat --to-dst ee:af:f8:66:59:bd --dnat-target ACCEPT
COMMIT
`
	if diff := cmp.Diff(want, string(restoreInput('A', rules))); diff != "" {
		t.Error(diff)
	}
	saved := savedRules([]byte(`*filter
-A FORWARD -j DROP
*nat
:PREROUTING ACCEPT
-A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.13.76.4 -j arpreply --arpreply-mac 0:d:3a:28:bd:2
-A POSTROUTING -s unicast -o eth0 -j snat --to-src 00:0D:3a:28:bd:02 --snat-arp --snat-target ACCEPT
`))
	if len(saved) != 3 {
		t.Errorf("%d rules, want 3: %v", len(saved), saved)
	}
	for _, r := range rules[:2] {
		if saved[canonical(r)] != 1 {
			t.Errorf("not recognised: %s", r)
		}
	}
}
