package nftables

import (
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
