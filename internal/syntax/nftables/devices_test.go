package nftables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/model/netfilter"
)

// TestDevices: chains tell where they hang, one or several interfaces, also what they were printed as again; and in the JSON of nft that
// has it.
func TestDevices(t *testing.T) {
	text := "table inet t0 {\n\tchain in {\n\t\ttype filter hook ingress device \"lo\" priority filter; policy accept;\n\t}\n" +
		"\tchain other {\n\t\ttype filter hook input priority filter; policy accept;\n\t}\n}\n" +
		"table netdev n {\n\tchain out {\n\t\ttype filter hook egress devices = { \"eth0\", \"veth a\" } priority 5; policy drop;\n\t}\n}\n"
	want := map[ChainName][]string{{netfilter.Inet, "t0", "in"}: {"lo"}, {netfilter.Netdev, "n", "out"}: {"eth0", "veth a"}}
	if d := cmp.Diff(want, Devices([]byte(text))); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want, Devices([]byte(strings.Replace(text, `{ "eth0", "veth a" }`, "{ eth0, veth a }", 1)))); d != "" {
		t.Errorf("without quotes: %s", d)
	}
	if d := cmp.Diff(want, Devices(AppendDevices(nil, want))); d != "" {
		t.Errorf("printed and read again: %s", d)
	}
	for dev, want := range map[string][]string{`,"dev":"a"`: {"a"}, `,"dev":["a","b"]`: {"a", "b"}, "": nil} {
		rs, err := Parse([]byte(`{"nftables":[{"table":{"family":"netdev","name":"n"}},{"chain":{"family":"netdev","table":"n","name":"c","type":"filter",` +
			`"hook":"ingress","prio":0,"policy":"accept"` + dev + `}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		tables, err := Lower(rs)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, tables[0].Chains[0].Base.Devices); d != "" {
			t.Errorf("%s: %s", dev, d)
		}
	}
}

// TestDevicesListed: versions of nft before 1.1.7 print names in a list without quotes.
func TestDevicesListed(t *testing.T) {
	out := inNamespace(t, `ip link add v0 type veth peer name v1
nft -f - <<EOF
table netdev t {
	chain one { type filter hook ingress device "lo" priority 0; }
	chain more { type filter hook ingress devices = { v0, v1 } priority -500; }
	chain out { type filter hook egress device "v0" priority 0; }
}
table inet u {
	chain one { type filter hook ingress device "v1" priority filter - 5; }
	chain none { type filter hook input priority 5; policy drop; }
}
EOF
nft list chains`)
	want := map[ChainName][]string{{netfilter.Netdev, "t", "one"}: {"lo"}, {netfilter.Netdev, "t", "more"}: {"v0", "v1"},
		{netfilter.Netdev, "t", "out"}: {"v0"}, {netfilter.Inet, "u", "one"}: {"v1"}}
	if d := cmp.Diff(want, Devices([]byte(out))); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
