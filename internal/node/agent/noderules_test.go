package agent

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Claim B7, to the letter, and kubelet's way to have no such rule.
func TestKubenetRules(t *testing.T) {
	for cidr, want := range map[string][]string{
		"192.168.0.0/16": {
			"-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
			`! -d 192.168.0.0/16 -m comment --comment "kubenet: SNAT for outbound traffic from cluster" -m addrtype ! --dst-type LOCAL -j MASQUERADE`,
		},
		"0.0.0.0/0": {"-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"},
	} {
		o := Defaults()
		o.NonMasquerade = netip.MustParsePrefix(cidr)
		var got []string
		for _, r := range o.nodeRules().Postrouting {
			got = append(got, r.Spec())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", cidr, diff)
		}
	}
}
