package nftables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// tableModel is a table as the kernel would have it: it refuses what the kernel refuses.
type tableModel struct {
	sets     map[string]bool
	chains   map[string]string // content
	elements Elements
	damaged  bool // by others: service ports may have lost endpoints
}

func newModel() *tableModel {
	return &tableModel{sets: map[string]bool{}, chains: map[string]string{}, elements: Elements{}}
}

// apply makes changes, looking at the table after each step.
func (m *tableModel) apply(t *testing.T, c Changes) {
	t.Helper()
	for i := range c.Steps {
		step := &c.Steps[i]
		for j := range step.Sets {
			m.sets[step.Sets[j].Name] = true
			if m.elements[step.Sets[j].Name] == nil {
				m.elements[step.Sets[j].Name] = map[string]Value{}
			}
		}
		for j := range step.Chains {
			m.chains[step.Chains[j].Name] = content(&step.Chains[j])
		}
		for _, d := range step.Delete {
			if _, there := m.elements[d.Set.Name][d.Element.Key]; !there {
				t.Fatalf("deletes of %s what is not there: %s", d.Set.Name, fields(d.Element.Key, d.Set.Key))
			}
			delete(m.elements[d.Set.Name], d.Element.Key)
		}
		for _, a := range step.Add {
			if _, there := m.elements[a.Set.Name][a.Element.Key]; there {
				t.Fatalf("adds to %s what is there: %s", a.Set.Name, fields(a.Element.Key, a.Set.Key))
			}
			if _, there := m.chains[a.Element.Value]; a.Set.Verdicts && !there {
				t.Fatalf("%s leads to %s, which does not exist", a.Set.Name, a.Element.Value)
			}
			v := Value{a.Element.Value, a.Element.Comment}
			if a.Set.Ranges {
				v.Value = a.Element.End
			}
			m.elements[a.Set.Name][a.Element.Key] = v
		}
		m.forwards(t)
	}
	for _, name := range c.GoneChains {
		for set, keys := range m.elements {
			for key, v := range keys {
				if v.Value == name {
					t.Fatalf("chain %s goes, but %s leads there for %q", name, set, key)
				}
			}
		}
		if _, there := m.chains[name]; !there {
			t.Fatalf("chain %s goes, and is not there", name)
		}
		delete(m.chains, name)
	}
	for _, name := range c.GoneSets {
		delete(m.sets, name)
		delete(m.elements, name)
	}
}

// forwards tells that each service port that is led to a fan-out has an endpoint in each of its slots.
func (m *tableModel) forwards(t *testing.T) {
	t.Helper()
	if m.damaged {
		return
	}
	for set, keys := range m.elements {
		for key, v := range keys {
			to := v.Value
			if isFanSet(set) {
				to = set
				if rules, there := m.chains[set]; !there || !strings.Contains(m.chains[chainServices], set) || rules == "" {
					t.Fatalf("nothing leads from set %s to a chain of its name", set)
				}
			}
			m.fills(t, set, key, to)
		}
	}
}

// fills tells that a key that leads to a chain has an endpoint in each slot, if the chain is that of a fan-out.
func (m *tableModel) fills(t *testing.T, set, key, to string) {
	t.Helper()
	at := byAddress
	to, byPort := strings.CutPrefix(to, matchPrefix[byNodePort])
	if byPort {
		at = byNodePort
	}
	for policy, name := range policyName {
		for _, way := range wayPrefix {
			rest, ok := strings.CutPrefix(to, way+name+"/")
			var of int
			if _, err := fmt.Sscanf(rest, "%d", &of); !ok || err != nil || way == wayPrefix[remember] {
				continue
			}
			for i := range of {
				if _, ok := m.elements[mapEndpoints[at][policy]][key+slotField(i)]; !ok {
					t.Fatalf("%s %q leads to %s, but slot %d of %s is empty", set, key, to, i, mapEndpoints[at][policy])
				}
			}
		}
	}
}

// content returns all of a chain's rules, to compare them.
func content(c *nf.Chain) string {
	var all []byte
	for _, m := range (nf.Table{}).AddRules(c) {
		all = append(all, m.Data...)
	}
	return string(all)
}

// withoutSlots has the endpoints of each service port's key as a sorted list.
func withoutSlots(e Elements) map[string]map[string][]string {
	all := map[string]map[string][]string{}
	for set, keys := range e {
		all[set] = map[string][]string{}
		for key, v := range keys {
			if strings.HasSuffix(set, "-endpoints") {
				key = key[:len(key)-4]
			}
			all[set][key] = append(all[set][key], v.Value+v.Comment)
			slices.Sort(all[set][key])
		}
	}
	return all
}

// TestArrange: who had a slot that is still there keeps it, and every endpoint has one.
func TestArrange(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		before := arrange(nil, portOf(1, r.IntN(12)).ForCluster)
		endpoints := portOf(1, 16).ForCluster[r.IntN(8):]
		endpoints = endpoints[:r.IntN(len(endpoints)+1)]
		r.Shuffle(len(endpoints), func(i, j int) { endpoints[i], endpoints[j] = endpoints[j], endpoints[i] })
		slots := arrange(before, endpoints)
		has := map[netip.AddrPort]bool{}
		for _, a := range slots {
			has[a] = true
		}
		if len(slots) != len(endpoints) || len(has) != len(endpoints) {
			t.Fatalf("%d endpoints in slots %v", len(endpoints), slots)
		}
		for i := range endpoints {
			a := endpoints[i].Addr
			if at := slices.Index(before, a); !has[a] || at >= 0 && at < len(slots) && slots[at] != a {
				t.Fatalf("%v is not at %d: %v", a, at, slots)
			}
		}
	}
}

// TestRandomChanges takes a table through random worlds by steps: after each change it holds what it would if it were made anew, slots
// aside, and after each step every service port has its endpoints.
func TestRandomChanges(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &randomWorld{r: rand.New(rand.NewPCG(seed, 12)), services: map[int]*corev1.Service{}, slices: map[int]*discoveryv1.EndpointSlice{}}
			config := proxy.Config{Family: service.IPv4, MasqueradeBit: 14}
			config.Detector.CIDR = netip.MustParsePrefix("10.1.0.0/16")
			state, table := NewState(config, nil), newModel()
			table.apply(t, state.Compare(Elements{}))
			for range 40 {
				w.change()
				table.apply(t, state.Update(withGone(state, w.ports())))
				table.equals(t, state)
			}
			again := NewState(config, table.elements) // as after a restart
			again.Update(withGone(again, w.ports()))
			for _, step := range again.Compare(table.copied()).Steps[1:] {
				if len(step.Delete)+len(step.Add) > 0 {
					t.Fatalf("a restart changes %v %v", step.Delete, step.Add)
				}
			}
			table.damage(w.r)
			table.damaged = true
			table.apply(t, again.Compare(table.copied()))
			table.damaged = false
			table.forwards(t)
			table.equals(t, again)
		})
	}
}

func (m *tableModel) equals(t *testing.T, state *State) {
	t.Helper()
	counted := state.total
	_, chains := state.frame()
	elements := elementsOf(state)
	total := 0
	for _, keys := range elements {
		total += len(keys)
	}
	if total != counted {
		t.Fatalf("%d elements, counted %d", total, counted)
	}
	if diff := cmp.Diff(elements, m.onlyFixed(elements)); diff != "" {
		t.Fatalf("the state is not what its steps made (-state +table):\n%s", diff)
	}
	contents := map[string]string{}
	for i := range chains {
		contents[chains[i].Name] = content(&chains[i])
	}
	if diff := cmp.Diff(contents, m.chains); diff != "" {
		t.Fatalf("chains (-state +table):\n%s", diff)
	}
	fresh := NewState(state.w.Config, nil)
	services := map[service.Key][]service.Port{}
	for key, list := range state.services {
		for _, st := range list {
			services[key] = append(services[key], *st.port)
		}
	}
	fresh.Update(services)
	anew := elementsOf(fresh)
	if fresh.without != state.without {
		t.Fatalf("without endpoints here: %v, anew %v", state.without, fresh.without)
	}
	if diff := cmp.Diff(withoutSlots(anew), withoutSlots(elements)); diff != "" {
		t.Fatalf("not as made anew (-anew +got):\n%s", diff)
	}
}

// withGone returns service ports by service, with nothing for services of a state that have none any more.
func withGone(s *State, ports []service.Port) map[service.Key][]service.Port {
	by := byService(ports)
	for key := range s.services {
		by[key] = by[key][:len(by[key]):len(by[key])]
	}
	return by
}

func (m *tableModel) copied() Elements {
	all := Elements{}
	for set, keys := range m.elements {
		all[set] = maps.Clone(keys)
	}
	return all
}

// onlyFixed leaves out the maps of clients.
func (m *tableModel) onlyFixed(like Elements) Elements {
	all := Elements{}
	for set := range like {
		all[set] = m.elements[set]
	}
	return all
}

// damage does what others might.
func (m *tableModel) damage(r *rand.Rand) {
	for _, keys := range m.elements {
		for key := range keys {
			switch r.IntN(10) {
			case 0:
				delete(keys, key)
			case 1:
				keys[key] = Value{Value: chainMark}
			case 2:
				keys["foreign"+key] = keys[key]
			}
		}
	}
}

// randomWorld is a few services that share some of their addresses.
type randomWorld struct {
	r        *rand.Rand
	services map[int]*corev1.Service
	slices   map[int]*discoveryv1.EndpointSlice
}

func (w *randomWorld) change() {
	for range 1 + w.r.IntN(3) {
		i := w.r.IntN(8)
		switch w.r.IntN(5) {
		case 0:
			delete(w.services, i)
		case 1, 2:
			w.services[i] = w.service(i)
		default:
			w.slices[i] = w.slice(i)
		}
	}
}

func (w *randomWorld) one(of ...string) string { return of[w.r.IntN(len(of))] }

func (w *randomWorld) service(i int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("s%d", i)}}
	s.Spec.ClusterIP = fmt.Sprintf("10.0.0.%d", 1+w.r.IntN(6)) // some share one
	s.Spec.Type = corev1.ServiceType(w.one("ClusterIP", "NodePort", "LoadBalancer"))
	for range w.r.IntN(3) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("198.51.100.%d", w.r.IntN(3)))
	}
	port := corev1.ServicePort{Name: "p", Port: int32(80 + w.r.IntN(2)), Protocol: corev1.Protocol(w.one("TCP", "UDP", "SCTP"))}
	if s.Spec.Type != corev1.ServiceTypeClusterIP {
		port.NodePort = int32(30000 + w.r.IntN(4))
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicy(w.one("Cluster", "Local"))
	}
	s.Spec.Ports = []corev1.ServicePort{port}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("203.0.113.%d", w.r.IntN(3))}}
		if w.r.IntN(2) == 0 {
			s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "10.1.0.0/16", "192.0.2.0/24"}[:1+w.r.IntN(3)]
		}
	}
	if w.r.IntN(3) == 0 {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	policy := corev1.ServiceInternalTrafficPolicy(w.one("Cluster", "Local"))
	s.Spec.InternalTrafficPolicy = &policy
	return s
}

func (w *randomWorld) slice(i int) *discoveryv1.EndpointSlice {
	name, number := "p", int32(8080)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("s%d-a", i),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("s%d", i)}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range []corev1.Protocol{"TCP", "UDP", "SCTP"} {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &p})
	}
	for range w.r.IntN(7) {
		node, ready, serving := w.one("here", "there"), w.r.IntN(4) > 0, w.r.IntN(4) > 0
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.1.0.%d", w.r.IntN(20))}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &serving},
		})
	}
	return s
}

func (w *randomWorld) ports() []service.Port {
	return service.Build(service.IPv4, service.Node{Name: "here"}, slices.Collect(maps.Values(w.services)),
		slices.Collect(maps.Values(w.slices)))
}

// TestOneEndpointOfMany: a service port's change touches the slots that change, however many there are.
func TestOneEndpointOfMany(t *testing.T) {
	port := func(endpoints ...int) service.Port {
		p := service.Port{Name: service.Name{Namespace: "ns", Service: "s"}, Protocol: service.TCP, Port: 80,
			ClusterIP: netip.MustParseAddr("10.0.0.1")}
		for _, i := range endpoints {
			a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
			p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(a, 80), Ready: true})
		}
		p.ForCluster = p.Endpoints
		return p
	}
	var all []int
	for i := range 1000 {
		all = append(all, i)
	}
	for _, test := range []struct {
		name     string
		after    []int
		slots    int // elements of the endpoints that come or go
		elements int // of all sets
	}{
		{"one replaced", append([]int{2000}, all[1:]...), 2, 4},
		{"the first gone", all[1:], 3, 6},
		{"the last gone", all[:999], 1, 4},
		{"one more", append([]int{2000}, all...), 1, 4},
		{"none", all, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			state := NewState(proxy.Config{Family: service.IPv4}, nil)
			state.Update(byService([]service.Port{port(all...)}))
			c := state.Update(byService([]service.Port{port(test.after...)}))
			slots := 0
			for _, step := range c.Steps {
				for _, change := range slices.Concat(step.Delete, step.Add) {
					if change.Set.Name == mapEndpoints[byAddress][service.Cluster] {
						slots++
					}
				}
			}
			if slots != test.slots || c.elements() != test.elements {
				t.Errorf("%d elements of endpoints, %d of all, change; want %d and %d", slots, c.elements(), test.slots, test.elements)
			}
		})
	}
}

// TestNoVerdicts: services that come, change and go add nothing to verdict maps, whose elements the kernel would look at, all of them.
func TestNoVerdicts(t *testing.T) {
	state, ports := NewState(many, nil), manyPorts(3)
	for _, now := range [][]service.Port{ports, oneLess(ports), ports[:2], ports} {
		c := state.Update(withGone(state, now))
		for i := range c.Steps {
			for _, add := range c.Steps[i].Add {
				if add.Set.Verdicts {
					t.Errorf("%s gets %s", add.Set.Name, fields(add.Element.Key, add.Set.Key))
				}
			}
		}
	}
}

// TestForget checks that the clients of an endpoint that goes are forgotten, and no other clients.
func TestForget(t *testing.T) {
	w := &randomWorld{r: rand.New(rand.NewPCG(1, 1)), services: map[int]*corev1.Service{}, slices: map[int]*discoveryv1.EndpointSlice{}}
	s := w.service(0)
	s.Spec = corev1.ServiceSpec{ClusterIP: "10.0.0.1", Type: corev1.ServiceTypeClusterIP, SessionAffinity: corev1.ServiceAffinityClientIP,
		Ports: []corev1.ServicePort{{Name: "p", Port: 80, Protocol: corev1.ProtocolTCP}}}
	slice := func(hosts ...int) *discoveryv1.EndpointSlice {
		e := w.slice(0)
		e.Endpoints = nil
		for _, h := range hosts {
			e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.0.%d", h)}})
		}
		return e
	}
	w.services[0], w.slices[0] = s, slice(1, 2, 3)
	state := NewState(proxy.Config{Family: service.IPv4}, nil)
	if c := state.Update(withGone(state, w.ports())); len(c.Steps) != 1 || len(c.Steps[0].Sets) != 1 || len(c.Steps[0].Forget) != 0 {
		t.Fatalf("at first: %+v", c)
	}
	w.slices[0] = slice(1, 3)
	c := state.Update(withGone(state, w.ports()))
	want := []Forget{{"affinity/cluster/10800/ns/s0/tcp/p", map[string]bool{}}}
	for _, ep := range []string{"10.1.0.1:8080", "10.1.0.3:8080"} {
		want[0].Keep[endpointField(netip.MustParseAddrPort(ep))] = true
	}
	if len(c.Steps) != 1 || !cmp.Equal(c.Steps[0].Forget, want) || len(c.Steps[0].Chains) != 1 || len(c.Steps[0].Sets) != 0 {
		t.Errorf("an endpoint less: %+v", c)
	}
	delete(w.services, 0)
	if c := state.Update(withGone(state, w.ports())); !slices.Equal(c.GoneSets, []string{want[0].Set}) || len(c.GoneChains) != 2 {
		t.Errorf("no service: %+v", c)
	}
}

// portOf returns a service port with some endpoints.
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

// held returns what a comparison reads of the table.
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
