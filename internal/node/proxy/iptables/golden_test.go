package iptables

import (
	"flag"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/testing/listing"
)

var update = flag.Bool("update", false, "rewrite the golden rules under testdata")

// scenario is a txtar under testdata: config (the settings below as YAML), objects.yaml (Services and EndpointSlices), rules (what a full
// sync writes into an empty kernel) and, where a seed shows rules, seed.NAME: lines that are exactly those of the rules that hold NAME; or
// listing: what iptables -t nat -nvL printed of whole chains.
type scenario struct {
	path     string
	archive  *txtar.Archive
	config   proxy.Config
	node     service.Node
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice
}

type scenarioConfig struct {
	Rules              string
	IPv6               bool
	ClusterCIDR        string
	Interface          string
	Node               string
	Zone               string
	NodeIP             string
	NodePortIPs        []string
	MasqueradeAll      bool
	LocalhostNodePorts bool
	TCPLiberal         bool
	NFAcct             bool
}

func file(a *txtar.Archive, name string) []byte {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

func load(t testing.TB, path string) *scenario {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &scenario{path: path, archive: archive}
	var c scenarioConfig
	if err := yaml.UnmarshalStrict(file(archive, "config"), &c); err != nil {
		t.Fatalf("%s: config: %v", path, err)
	}
	s.node = service.Node{Name: c.Node, Zone: c.Zone}
	s.config = proxy.Config{Family: service.IPv4, Rules: c.Rules, MasqueradeBit: 14, MasqueradeAll: c.MasqueradeAll,
		LocalhostNodePorts: c.LocalhostNodePorts, TCPLiberal: c.TCPLiberal, NFAcct: c.NFAcct}
	if c.IPv6 {
		s.config.Family = service.IPv6
	}
	s.config.Detector.Interface = c.Interface
	if c.ClusterCIDR != "" {
		s.config.Detector.CIDR = netip.MustParsePrefix(c.ClusterCIDR)
	}
	if c.NodeIP != "" {
		s.config.NodeIP = netip.MustParseAddr(c.NodeIP)
	}
	for _, ip := range c.NodePortIPs {
		s.config.NodePortIPs = append(s.config.NodePortIPs, netip.MustParseAddr(ip))
	}
	for _, doc := range strings.Split(string(file(archive, "objects.yaml")), "\n---\n") {
		s.object(t, doc)
	}
	return s
}

func (s *scenario) object(t testing.TB, doc string) {
	t.Helper()
	var kind struct{ Kind string }
	if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
		t.Fatalf("%s: %v", s.path, err)
	}
	var err error
	switch kind.Kind {
	case "Service":
		o := &corev1.Service{}
		err = yaml.UnmarshalStrict([]byte(doc), o)
		s.services = append(s.services, o)
	case "EndpointSlice":
		o := &discoveryv1.EndpointSlice{}
		err = yaml.UnmarshalStrict([]byte(doc), o)
		s.slices = append(s.slices, o)
	default:
		t.Fatalf("%s: no kind %q here", s.path, kind.Kind)
	}
	if err != nil {
		t.Fatalf("%s: %v", s.path, err)
	}
}

func (s *scenario) generate(t testing.TB) *RuleSet {
	t.Helper()
	set, err := Generate(s.config, service.Build(s.config.Family, s.node, s.services, s.slices))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func scenarios(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	return paths
}

func TestGoldenRules(t *testing.T) {
	for _, path := range scenarios(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			s := load(t, path)
			set := s.generate(t)
			var edits []iptables.Edit
			for i := range set.Tables {
				e := iptables.Edit{Table: set.Tables[i].Name, Replace: set.Tables[i].Chains}
				for _, j := range set.Jumps {
					if j.Table == e.Table {
						e.Insert = append(e.Insert, j.SharedRule)
					}
				}
				edits = append(edits, e)
			}
			got := string(iptables.AppendRestore(nil, edits))
			for _, f := range s.archive.Files {
				if name, ok := strings.CutPrefix(f.Name, "seed."); ok {
					seedLines(t, name, string(f.Data), got)
				}
				if f.Name == "listing" {
					seedListing(t, f.Data, set)
				}
			}
			checkChains(t, set)
			if *update {
				s.write(t, got)
				return
			}
			if diff := cmp.Diff(string(file(s.archive, "rules")), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func (s *scenario) write(t *testing.T, rules string) {
	t.Helper()
	s.archive.Files = slices.DeleteFunc(s.archive.Files, func(f txtar.File) bool { return f.Name == "rules" })
	s.archive.Files = append(s.archive.Files, txtar.File{Name: "rules", Data: []byte(rules)})
	if err := os.WriteFile(s.path, txtar.Format(s.archive), 0o644); err != nil {
		t.Fatal(err)
	}
}

// seedLines compares as claims.md asks: as sets of lines, in order within the chains of a service.
func seedLines(t *testing.T, grep, seed, rules string) {
	t.Helper()
	chains := func(text string) map[string][]string {
		out := map[string][]string{}
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\n")
			if !strings.HasPrefix(line, "-A ") || !strings.Contains(line, grep) {
				continue
			}
			chain := strings.Fields(line)[1]
			out[chain] = append(out[chain], line)
		}
		for chain, lines := range out {
			if !isServiceChain(chain) {
				slices.Sort(lines)
			}
		}
		return out
	}
	if diff := cmp.Diff(chains(seed), chains(rules)); diff != "" {
		t.Errorf("lines with %s differ from the seed's (-seed +got):\n%s", grep, diff)
	}
}

// seedListing compares whole chains, in order within the chains of a service.
func seedListing(t *testing.T, listed []byte, set *RuleSet) {
	t.Helper()
	table, assumed, err := listing.Parse(iptables.NAT, string(listed))
	if err != nil || len(assumed) > 0 {
		t.Fatalf("listing: %v, assumed %v", err, assumed)
	}
	nat := set.Tables[slices.IndexFunc(set.Tables, func(t iptables.Table) bool { return t.Name == iptables.NAT })]
	for _, want := range table.Chains {
		got := nat.Chain(want.Name)
		if got == nil {
			t.Errorf("no chain %s", want.Name)
			continue
		}
		if diff := cmp.Diff(specs(&want), specs(got)); diff != "" {
			t.Errorf("%s differs from the seed's (-seed +got):\n%s", want.Name, diff)
		}
	}
}

func specs(c *iptables.Chain) []string {
	var specs []string
	for _, r := range c.Rules {
		specs = append(specs, r.Spec())
	}
	if !isServiceChain(c.Name) {
		slices.Sort(specs)
	}
	return specs
}

// checkChains holds what every rule set must: jumps lead to chains that are there, no chain of a service is unused, rules read back the
// same.
func checkChains(t *testing.T, set *RuleSet) {
	t.Helper()
	for i := range set.Tables {
		table := &set.Tables[i]
		used := map[string]bool{}
		for _, c := range table.Chains {
			for _, r := range c.Rules {
				used[r.Target.Name] = true
				if strings.HasPrefix(r.Target.Name, "KUBE-") && table.Chain(r.Target.Name) == nil {
					t.Errorf("%s: %s jumps to %s, which does not exist", table.Name, c.Name, r.Target.Name)
				}
				if parsed, ok := iptables.ParseSpec(r.Spec()); !ok || parsed.Spec() != r.Spec() {
					t.Errorf("rule does not read back: %s", r.Spec())
				}
			}
		}
		for _, c := range table.Chains {
			if isServiceChain(c.Name) && !used[c.Name] {
				t.Errorf("%s: nothing jumps to %s", table.Name, c.Name)
			}
			if isServiceChain(c.Name) && len(c.Rules) == 0 {
				t.Errorf("%s: %s is empty", table.Name, c.Name)
			}
		}
	}
}

func TestOrderOfObjectsMakesNoDifference(t *testing.T) {
	for _, path := range scenarios(t) {
		s := load(t, path)
		want := render(s.generate(t))
		r := rand.New(rand.NewPCG(1, 2))
		for range 20 {
			shuffled := s.shuffle(r)
			if diff := cmp.Diff(want, render(shuffled.generate(t)), cmp.AllowUnexported(chainKey{}, chainText{})); diff != "" {
				t.Fatalf("%s: %s", path, diff)
			}
		}
	}
}

// shuffle permutes the objects and their endpoints, splits each slice in two and repeats one half.
func (s scenario) shuffle(r *rand.Rand) *scenario {
	var split []*discoveryv1.EndpointSlice
	for _, slice := range s.slices {
		a := slice.DeepCopy()
		r.Shuffle(len(a.Endpoints), func(i, j int) { a.Endpoints[i], a.Endpoints[j] = a.Endpoints[j], a.Endpoints[i] })
		b := a.DeepCopy()
		at := r.IntN(len(a.Endpoints) + 1)
		a.Endpoints, b.Endpoints = a.Endpoints[:at], b.Endpoints[at:]
		split = append(split, a, b, b.DeepCopy())
	}
	r.Shuffle(len(split), func(i, j int) { split[i], split[j] = split[j], split[i] })
	s.slices = split
	s.services = append(slices.Clone(s.services), s.services[0].DeepCopy())
	r.Shuffle(len(s.services), func(i, j int) { s.services[i], s.services[j] = s.services[j], s.services[i] })
	return &s
}
