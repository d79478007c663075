package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"packetwalk.dev/internal/node/service"
)

// portOf is a service port with some endpoints.
func portOf(i byte, endpoints int) service.Port {
	p := service.Port{Name: service.Name{Namespace: "ns", Service: string('a' + rune(i))}, Protocol: service.TCP, Port: 80,
		ClusterIP: netip.AddrFrom4([4]byte{10, 0, 0, i})}
	for e := range endpoints {
		p.ForCluster = append(p.ForCluster, service.Endpoint{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, i, byte(e)}), 8080), Ready: true, Serving: true})
	}
	p.Endpoints = p.ForCluster
	return p
}

// TestFanOutGoesWhileNobodyWrites: a comparison with a table whose fan-outs are others forwards after each step.
func TestFanOutGoesWhileNobodyWrites(t *testing.T) {
	table, before := newModel(), NewState(many, nil)
	before.Update(byService([]service.Port{portOf(1, 3), portOf(2, 3), portOf(3, 2)}))
	table.apply(t, before.Compare(Elements{}))
	after := NewState(many, table.elements)
	after.Update(byService([]service.Port{portOf(1, 1), portOf(2, 1), portOf(3, 2)}))
	table.apply(t, after.replace(table.held()))
	table.equals(t, after)
}

// held is what a comparison reads of the table.
func (m *tableModel) held() heldTable {
	h := heldTable{elements: m.copied(), sets: map[string]string{}, hooks: map[string]string{}, chains: map[string]string{}}
	for name := range m.sets {
		h.sets[name] = ""
	}
	for name, rules := range m.chains {
		h.hooks[name], h.chains[name] = "", rules
	}
	return h
}

// TestLastingFans: a service port comes to another number of endpoints, which no other has, without a chain that is made for it, up to a
// number.
func TestLastingFans(t *testing.T) {
	state := NewState(many, nil)
	state.Update(byService([]service.Port{portOf(1, 3), portOf(2, 3)}))
	state.Compare(Elements{})
	for n := range fewEndpoints + 1 {
		c := state.Update(byService([]service.Port{portOf(1, n+1)}))
		var made []string
		for i := range c.Steps {
			for _, chain := range c.Steps[i].Chains {
				if chain.Name != chainServices {
					made = append(made, chain.Name)
				}
			}
		}
		if len(made)+len(c.GoneChains) > 0 != (n == fewEndpoints) {
			t.Errorf("with %d endpoints: made %q, gone %q", n+1, made, c.GoneChains)
		}
	}
}

// TestNoVerdictMap: a service port that loses all of its endpoints, and gets some again, changes no map of verdicts: the kernel would look
// at all elements of all of them.
func TestNoVerdictMap(t *testing.T) {
	state := NewState(many, nil)
	for _, n := range []int{3, 0, 2} {
		for _, step := range state.Update(byService([]service.Port{portOf(1, n)})).Steps {
			for _, change := range slices.Concat(step.Delete, step.Add) {
				if change.Set.Verdicts {
					t.Errorf("with %d endpoints: %s changes", n, change.Set.Name)
				}
			}
		}
	}
}

// TestForeignKeysOfFans: a look at what was written finds what others added to a fan-out's set.
func TestForeignKeysOfFans(t *testing.T) {
	table, state := newModel(), NewState(many, nil)
	state.Update(byService([]service.Port{portOf(1, 3)}))
	table.apply(t, state.Compare(Elements{}))
	foreign := (&part{port: &service.Port{Protocol: service.TCP, Port: 80}}).key(byAddress, netip.MustParseAddr("10.0.0.77")).key
	table.elements["internal/cluster/3"][foreign] = Value{}
	table.damaged = true
	table.apply(t, state.Compare(table.copied()))
	table.equals(t, state)
}

// TestFanOfSet: the names of sets may be others'.
func TestFanOfSet(t *testing.T) {
	for _, name := range []string{"", "internal/", "internal/cluster/", "internal/cluster/0", "internal/cluster/-1", "internal/cluster/+3",
		"internal/cluster/03", "internal/cluster/3/ns/s/tcp/", "internal/both/3", "external/local/3\n", "internal/\x1b[2J", "cluster/3",
		"internal/cluster/99999999999999999999"} {
		if f, ok := fanOfSet(name); ok {
			t.Errorf("%q is %+v", name, f)
		}
	}
	for _, name := range []string{"internal/cluster/3", "internal/local/1", "external/cluster/250"} {
		if f, ok := fanOfSet(name); !ok || f.chain() != name || !f.hasSet() {
			t.Errorf("%q is %+v, %v", name, f, ok)
		}
	}
}
