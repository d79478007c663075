package masquerade

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/syntax/iptables"
)

// TestRules: the node's own rules, to the letter.
func TestRules(t *testing.T) {
	docker := netip.MustParsePrefix("172.17.0.0/16")
	for _, c := range []struct {
		exclude string
		want    []string
	}{
		{"", nil},
		{"10.0.0.0/8", []string{ // claim A6, to the letter
			"-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
			"! -d 10.0.0.0/8 -m iprange ! --dst-range 168.63.129.16-168.63.129.16 -m addrtype ! --dst-type LOCAL -j MASQUERADE",
		}},
		{"10.0.0.0/8 172.16.0.0/12 168.63.129.16/32", []string{
			"-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
			"! -d 10.0.0.0/8 -m iprange ! --dst-range 172.16.0.0-172.31.255.255 -m iprange ! --dst-range 168.63.129.16-168.63.129.16 -m addrtype ! --dst-type LOCAL -j MASQUERADE",
		}},
	} {
		var exclude []netip.Prefix
		for _, s := range strings.Fields(c.exclude) {
			exclude = append(exclude, netip.MustParsePrefix(s))
		}
		var got []string
		for _, r := range Rules(exclude, docker) {
			got = append(got, r.Spec())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.exclude, diff)
		}
	}
}

// TestOtherMasquerade: an agent with other ranges takes the rule of the one before out, and nobody else's.
func TestOtherMasquerade(t *testing.T) {
	const (
		others  = "-A POSTROUTING ! -d 10.0.0.0/8 -m addrtype ! --dst-type LOCAL -j MASQUERADE\n-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n"
		before  = "-A POSTROUTING ! -d 10.0.0.0/8 -m iprange ! --dst-range 168.63.129.16-168.63.129.16 -m addrtype ! --dst-type LOCAL -j MASQUERADE\n"
		kubenet = `-A POSTROUTING ! -d 192.168.0.0/16 -m comment --comment "kubenet: SNAT for outbound traffic from cluster" -m addrtype ! --dst-type LOCAL -j MASQUERADE` + "\n"
	)
	rules := Rules([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, netip.Prefix{})
	now := appended(&rules[0]) + "\n"
	for _, c := range []struct{ dump, want string }{
		{others + before + kubenet, "*nat\n-D" + before[2:] + "-D" + kubenet[2:] + now + "COMMIT\n"},
		{others + now + before, "*nat\n-D" + before[2:] + "COMMIT\n"},
		{others + now, ""},
	} {
		edit := Edit([]byte("*nat\n:POSTROUTING ACCEPT [0:0]\n"+c.dump+"COMMIT\n"), rules)
		if d := cmp.Diff(c.want, string(iptables.AppendRestore(nil, []iptables.Edit{edit}))); d != "" {
			t.Error(d)
		}
	}
}
