package explain

import (
	"fmt"
	"net/netip"
	"testing"

	"packetwalk.dev/internal/model/snapshot"
)

// masqObjects are ConfigMaps of the ip-masq-agent.
func masqObjects(texts ...string) snapshot.Objects {
	var o snapshot.Objects
	for i, text := range texts {
		o.ConfigMaps = append(o.ConfigMaps, snapshot.ConfigMap{Namespace: "kube-system", Name: fmt.Sprintf("config-%d", i), Data: map[string]string{"ip-masq-agent": text}})
	}
	return o
}

// TestMasqOutside: why a destination that the ip-masq-agent translates is none of its ranges, and that nobody says so when it should be one.
func TestMasqOutside(t *testing.T) {
	for name, test := range map[string]struct {
		objects snapshot.Objects
		want    string
	}{
		"nothing known": {snapshot.Objects{}, "outside nonMasqueradeCIDRs"},
		"outside":       {masqObjects("nonMasqueradeCIDRs: [10.2.0.0/16]"), "outside nonMasqueradeCIDRs of ConfigMap kube-system/config-0"},
		"emptied":       {masqObjects("nonMasqueradeCIDRs: []"), "nonMasqueradeCIDRs is empty in ConfigMap kube-system/config-0"},
		"not applied": {masqObjects("nonMasqueradeCIDRs: [10.2.0.0/16]", "nonMasqueradeCIDRs: [10.1.0.0/16, ten]"),
			"outside the nonMasqueradeCIDRs in force; the present configuration is not applied (ConfigMap kube-system/config-1, key ip-masq-agent, " +
				`nonMasqueradeCIDRs[1]: "ten" is not a range; write it as 10.0.0.0/8)`},
		"no rule yet": {masqObjects("nonMasqueradeCIDRs: [10.2.0.0/16, 10.1.0.0/16]"),
			"no rule for 10.1.0.0/16 of nonMasqueradeCIDRs[1] in ConfigMap kube-system/config-0, which the node's agent has not applied"},
	} {
		if got := NewOwners(test.objects).masqConfig().outside(netip.MustParseAddr("10.1.1.4")); got != test.want {
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, test.want)
		}
	}
}
