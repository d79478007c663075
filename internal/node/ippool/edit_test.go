package ippool

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/ipset"
	"packetwalk.dev/internal/syntax/iptables"
)

// holds tells whether an address is in a set, as the kernel would.
func holds(s ipset.Set, a netip.Addr) bool {
	return slices.ContainsFunc(s.Members, func(m ipset.Member) bool {
		p, err := netip.ParsePrefix(m.Element)
		if err != nil {
			p = netip.PrefixFrom(netip.MustParseAddr(m.Element), 32)
		}
		return p.Contains(a)
	})
}

// TestStepsTranslateNothingElse: on the way from any pools to any others, what neither translates never is, and what both translate always.
func TestStepsTranslateNothingElse(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 6))
	pools := func() []Pool {
		var some []Pool
		for i := range random.IntN(5) {
			a := netip.AddrFrom4([4]byte{10, byte(random.IntN(2)), byte(random.IntN(4)), byte(random.IntN(4))})
			cidr := netip.PrefixFrom(a, 8+random.IntN(25)).Masked()
			some = append(some, Pool{Name: fmt.Sprint(i), CIDR: cidr, NATOutgoing: random.IntN(2) == 0})
		}
		return some
	}
	address := func() netip.Addr {
		return netip.AddrFrom4([4]byte{byte(10 + random.IntN(2)), byte(random.IntN(2)), byte(random.IntN(4)), byte(random.IntN(4))})
	}
	translates := func(sets map[string]ipset.Set, from, to netip.Addr) bool {
		return holds(sets["cali40masq-ipam-pools"], from) && !holds(sets["cali40all-ipam-pools"], to)
	}
	states := 0
	for range 300 {
		before, after := Build(service.IPv4, Felix{}, pools()), Build(service.IPv4, Felix{}, pools())
		sets := map[string]ipset.Set{before.All.Name: before.All.IPSet(), before.Masq.Name: before.Masq.IPSet()}
		steps := after.Steps([]ipset.Set{before.All.IPSet(), before.Masq.IPSet()})
		type flow struct{ from, to netip.Addr }
		var never, always []flow
		for range 50 {
			f := flow{address(), address()}
			one := translates(sets, f.from, f.to)
			other := translates(map[string]ipset.Set{after.All.Name: after.All.IPSet(), after.Masq.Name: after.Masq.IPSet()}, f.from, f.to)
			if !one && !other {
				never = append(never, f)
			}
			if one && other {
				always = append(always, f)
			}
		}
		for _, s := range steps {
			sets[s.Name] = s
			states++
			for _, f := range never {
				if translates(sets, f.from, f.to) {
					t.Fatalf("%v is translated on the way from %v to %v", f, before.All.Members, after.All.Members)
				}
			}
			for _, f := range always {
				if !translates(sets, f.from, f.to) {
					t.Fatalf("%v is not translated on the way from %v to %v", f, before.All.Members, after.All.Members)
				}
			}
		}
		if !after.Holds([]ipset.Set{sets[after.All.Name], sets[after.Masq.Name]}) {
			t.Fatalf("ends with %v", sets)
		}
	}
	if states < 900 {
		t.Errorf("%d states looked at", states)
	}
}

// TestStepsDropWhatIsNotTheirs: elements with options, and a set of another type, have no part in the union.
func TestStepsDropWhatIsNotTheirs(t *testing.T) {
	p := Build(service.IPv4, Felix{}, []Pool{{Name: "a", CIDR: netip.MustParsePrefix("10.0.0.0/8"), NATOutgoing: true}})
	steps := p.Steps([]ipset.Set{
		{Name: p.All.Name, Type: "hash:net", Options: "family inet",
			Members: []ipset.Member{{Element: "10.1.0.0/16", Options: "nomatch"}, {Element: "10.2.0.0/16"}}},
		{Name: "other", Type: "hash:net", Options: "family inet", Members: []ipset.Member{{Element: "10.3.0.0/16"}}},
	})
	if got := fmt.Sprint(steps[0].Members); got != "[{10.0.0.0/8 } {10.2.0.0/16 }]" {
		t.Errorf("first step %s", got)
	}
	if steps := p.Steps([]ipset.Set{{Name: p.All.Name, Type: "hash:ip", Options: "family inet",
		Members: []ipset.Member{{Element: "10.9.9.9"}}}}); len(steps[0].Members) != 1 {
		t.Errorf("took over from another type: %v", steps[0].Members)
	}
}

// TestEdit: what is written to which nat table, as iptables-restore's input.
func TestEdit(t *testing.T) {
	pools := []Pool{{Name: "a", CIDR: netip.MustParsePrefix("10.0.0.0/8"), NATOutgoing: true}}
	head, end := Build(service.IPv4, Felix{}, pools), Build(service.IPv4, Felix{Append: true}, pools)
	none := Build(service.IPv4, Felix{}, nil)
	table := func(p *Plan, postrouting ...string) string {
		var b strings.Builder
		for _, j := range p.Jumps {
			if j.Chain != "POSTROUTING" {
				b.WriteString(string(iptables.AppendRule(nil, j.Chain, &j.Rule)) + "\n")
			}
		}
		for _, line := range postrouting {
			b.WriteString("-A POSTROUTING " + line + "\n")
		}
		var chains strings.Builder
		for _, c := range p.Chains {
			chains.WriteString(":" + c.Name + " - [0:0]\n")
			for _, r := range c.Rules {
				b.WriteString(string(iptables.AppendRule(nil, c.Name, &r.Rule)) + "\n")
			}
		}
		return "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n:KUBE-POSTROUTING - [0:0]\n" + chains.String() +
			b.String() + "COMMIT\n"
	}
	const jump, kube = `-m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING`, "-j KUBE-POSTROUTING"
	for _, test := range []struct {
		name string
		plan Plan
		nat  string
		want string // lines without the table's frame; the jumps of the other chains are left out
	}{
		{"nothing to do", head, table(&head, jump, kube), ""},
		{"nothing to do at the end", end, table(&end, kube, jump), ""},
		{"others came before", head, table(&head, kube, jump), "-D POSTROUTING " + jump + "\n-I POSTROUTING " + jump},
		{"others came after", end, table(&end, jump, kube), "-D POSTROUTING " + jump + "\n-A POSTROUTING " + jump},
		{"gone", head, table(&head, kube), "-I POSTROUTING " + jump},
		{"a copy", head, table(&head, jump, kube, jump), "-D POSTROUTING " + jump + "\n-D POSTROUTING " + jump + "\n-I POSTROUTING " + jump},
		{"another way to the same chain", head, table(&head, jump, "-s 10.1.0.0/16 -j cali-POSTROUTING"),
			"-D POSTROUTING -s 10.1.0.0/16 -j cali-POSTROUTING"},
		{"the last pool went", none, table(&head, jump, kube), ":cali-nat-outgoing - [0:0]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tables, err := iptables.Parse([]byte(test.nat))
			if err != nil {
				t.Fatal(err)
			}
			got := string(iptables.AppendRestore(nil, []iptables.Edit{test.plan.Edit(&tables[0])}))
			got = strings.TrimSuffix(strings.TrimPrefix(got, "*nat\n"), "\nCOMMIT\n")
			var lines []string
			for line := range strings.Lines(got) {
				if !strings.Contains(line, "PREROUTING") && !strings.Contains(line, "OUTPUT") {
					lines = append(lines, strings.TrimSpace(line))
				}
			}
			if got := strings.Join(lines, "\n"); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
	edit := head.Edit(nil)
	if len(edit.Replace) != len(head.Chains) || len(edit.Insert) != 3 || len(edit.Remove) != 0 {
		t.Errorf("into an empty kernel: %+v", edit)
	}
}
