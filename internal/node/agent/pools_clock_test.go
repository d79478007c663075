package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/ipset"
)

// someSets are IP sets that a test looks at: what Update wants is what there is then, with every step on the way.
type someSets struct {
	sets  map[string]ipset.Set
	steps []string
	fail  error // of the next Update
	reads int
}

func (s *someSets) List(context.Context) ([]ipset.Set, error) {
	s.reads++
	return slices.Collect(maps.Values(s.sets)), nil
}

func (s *someSets) Update(_ context.Context, plan func([]ipset.Set) []ipset.Set) ([]string, error) {
	if err := s.fail; err != nil {
		s.fail = nil
		return nil, err
	}
	var changed []string
	for _, want := range plan(slices.Collect(maps.Values(s.sets))) {
		if have, there := s.sets[want.Name]; there && slices.Equal(have.Members, want.Members) {
			continue
		}
		s.sets[want.Name] = want
		s.steps = append(s.steps, fmt.Sprintf("%s %v", want.Name, want.Members))
		changed = append(changed, want.Name)
	}
	return changed, nil
}

// poolNAT is a table nat that understands what the pools' agent writes.
type poolNAT struct {
	chains map[string][]string
	writes []string
	fail   error // of the next Restore
}

func (n *poolNAT) Save(context.Context, string) ([]byte, error) {
	text := "*nat\n"
	for _, name := range slices.Sorted(maps.Keys(n.chains)) {
		policy := "-"
		if !strings.HasPrefix(name, "cali-") {
			policy = "ACCEPT"
		}
		text += ":" + name + " " + policy + " [0:0]\n"
	}
	for name, rules := range n.chains {
		for _, r := range rules {
			text += "-A " + name + " " + r + "\n"
		}
	}
	return []byte(text + "COMMIT\n"), nil
}

func (n *poolNAT) Restore(_ context.Context, input []byte) error {
	if err := n.fail; err != nil {
		n.fail = nil
		return err
	}
	n.writes = append(n.writes, string(input))
	for line := range strings.Lines(string(input)) {
		line = strings.TrimSpace(line)
		command, rest, _ := strings.Cut(line, " ")
		chain, rule, _ := strings.Cut(rest, " ")
		switch {
		case strings.HasPrefix(line, ":"):
			n.chains[command[1:]] = nil
		case command == "-A":
			n.chains[chain] = append(n.chains[chain], rule)
		case command == "-I":
			n.chains[chain] = append([]string{rule}, n.chains[chain]...)
		case command == "-D":
			i := slices.Index(n.chains[chain], rule)
			if i < 0 {
				return fmt.Errorf("no rule %q in %s", rule, chain)
			}
			n.chains[chain] = slices.Delete(n.chains[chain], i, i+1)
		}
	}
	return nil
}

// somePools is a source that a test sets.
type somePools struct {
	mu         sync.Mutex
	pools      []*kube.Calico
	incomplete bool
	changed    chan struct{}
	events     []string
}

func (s *somePools) Run(ctx context.Context)  { <-ctx.Done() }
func (s *somePools) Changed() <-chan struct{} { return s.changed }
func (s *somePools) Snapshot() (pools, configurations []*kube.Calico, complete bool) {
	return s.pools, nil, !s.incomplete
}

func (s *somePools) Warn(_ context.Context, about *kube.Calico, _, _, reason, message string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, reason+" "+about.Name+" "+about.ResourceVersion+": "+message)
	return nil
}

func (s *somePools) set(pools ...*kube.Calico) {
	s.pools = pools
	s.changed <- struct{}{}
	settle(time.Second)
}

func (s *somePools) reported() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.events
	s.events = nil
	return events
}

// poolTest is an agent of pools on a clock that waits for nobody.
type poolTest struct {
	*testing.T
	keeper *keeper
	source *somePools
	sets   *someSets
	nat    *poolNAT
}

func withPools(t *testing.T, f func(p *poolTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := Defaults()
		o.NodeName = "node0"
		p := &poolTest{
			T: t, source: &somePools{changed: make(chan struct{}, 1)}, sets: &someSets{sets: map[string]ipset.Set{}},
			nat: &poolNAT{chains: map[string][]string{"PREROUTING": nil, "OUTPUT": nil, "POSTROUTING": {"-j KUBE-POSTROUTING"}}},
		}
		p.keeper = newPoolAgent(o, p.source, p.sets, []*poolTarget{{family: service.IPv4, applier: p.nat}},
			newPoolMetrics(&meters{}), t.Logf)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { p.keeper.run(ctx) })
		f(p)
		cancel()
		running.Wait()
	})
}

// inForce tells of the pools that the kernel follows.
func (p *poolTest) inForce(pools string) {
	p.Helper()
	if got := fmt.Sprint(p.sets.sets["cali40masq-ipam-pools"].Members); got != pools {
		p.Errorf("sources are %s, want %s", got, pools)
	}
	if n := len(p.nat.chains["cali-nat-outgoing"]); n != 1 {
		p.Errorf("cali-nat-outgoing has %d rules", n)
	}
	if got := p.nat.chains["POSTROUTING"]; len(got) != 2 || !strings.HasSuffix(got[0], "-j cali-POSTROUTING") {
		p.Errorf("POSTROUTING has %q", got)
	}
}

func (p *poolTest) state() (int, poolReport) {
	p.Helper()
	mux := http.NewServeMux()
	p.keeper.serve(mux)
	health, state := httptest.NewRecorder(), httptest.NewRecorder()
	mux.ServeHTTP(health, httptest.NewRequest(http.MethodGet, poolHealthPath, nil))
	mux.ServeHTTP(state, httptest.NewRequest(http.MethodGet, poolStatePath, nil))
	var r poolReport
	if err := json.Unmarshal(state.Body.Bytes(), &r); err != nil {
		p.Fatal(err)
	}
	return health.Code, r
}

func TestPoolAgentWaitsForTheWholeList(t *testing.T) {
	withPools(t, func(p *poolTest) {
		// of the agent before
		p.sets.sets["cali40all-ipam-pools"] = ipset.Set{Name: "cali40all-ipam-pools", Members: []ipset.Member{{Element: "10.9.0.0/16"}}}
		p.source.incomplete = true
		p.source.set()
		p.keeper.repair()
		settle(5 * time.Minute)
		if len(p.nat.writes) > 0 || len(p.sets.steps) > 0 {
			t.Errorf("wrote %q, %q without knowing the pools", p.nat.writes, p.sets.steps)
		}
		if code, _ := p.state(); code != http.StatusServiceUnavailable {
			t.Errorf("health %d", code)
		}
		p.source.incomplete = false
		p.source.set(ours)
		p.inForce("[{10.13.0.0/16 }]")
		code, state := p.state()
		if code != http.StatusOK || !state.Healthy || state.ChainInsertMode != "Insert" ||
			fmt.Sprint(state.Sets["cali40all-ipam-pools"]) != "[{10.13.0.0/16 [default-ipv4-ippool]}]" {
			t.Errorf("health %d, state %+v", code, state)
		}
		rules := state.Rules["IPv4"]
		if i := slices.IndexFunc(rules, func(r reportedRule) bool { return strings.Contains(r.Rule, "MASQUERADE") }); i < 0 ||
			fmt.Sprint(rules[i].Pools) != "[default-ipv4-ippool]" {
			t.Errorf("rules %+v", rules)
		}
	})
}

// TestPoolAgentPrepares: the kernel is made to track connections before there is one, where nothing else has; nothing is translated by it.
func TestPoolAgentPrepares(t *testing.T) {
	withPools(t, func(p *poolTest) {
		p.keeper.prepare(t.Context())
		p.inForce("[]")
		if len(p.sets.sets) != 2 || len(p.nat.writes) != 1 {
			t.Errorf("%d sets, writes %q", len(p.sets.sets), p.nat.writes)
		}
		p.source.set(ours)
		p.inForce("[{10.13.0.0/16 }]")
		if len(p.nat.writes) != 1 {
			t.Errorf("writes %q", p.nat.writes)
		}
		p.keeper.prepare(t.Context()) // of an agent that starts anew
		p.inForce("[{10.13.0.0/16 }]")
		if len(p.nat.writes) != 1 {
			t.Errorf("writes %q", p.nat.writes)
		}
		p.nat.chains["cali-nat-outgoing"], p.nat.chains["POSTROUTING"] = nil, []string{"-j KUBE-POSTROUTING"}
		p.keeper.prepare(t.Context()) // sets that are there stay
		p.inForce("[{10.13.0.0/16 }]")
		p.source.set()
		settle(time.Second)
		if rules := p.nat.chains["cali-nat-outgoing"]; len(rules) != 0 {
			t.Errorf("without pools there is %q", rules)
		}
	})
}

// TestPoolAgentReadsRulesOnlyWhenTheyMayDiffer: with many services table nat is large.
func TestPoolAgentReadsRulesOnlyWhenTheyMayDiffer(t *testing.T) {
	withPools(t, func(p *poolTest) {
		p.source.set(ours)
		writes := len(p.nat.writes)
		p.source.set(ours, theirs)
		p.inForce("[{10.13.0.0/16 } {198.51.100.0/24 }]")
		if want := []string{
			"cali40all-ipam-pools [{10.13.0.0/16 }]", "cali40masq-ipam-pools [{10.13.0.0/16 }]",
			"cali40all-ipam-pools [{10.13.0.0/16 } {198.51.100.0/24 }]", "cali40masq-ipam-pools [{10.13.0.0/16 } {198.51.100.0/24 }]",
		}; !slices.Equal(p.sets.steps, want) {
			t.Errorf("steps %q", p.sets.steps)
		}
		p.nat.chains["cali-nat-outgoing"] = nil // nobody tells
		p.source.set(ours)
		if len(p.nat.writes) != writes {
			t.Errorf("rules were written %d times for a change of sets", len(p.nat.writes)-writes)
		}
		settle(30 * time.Second) // the sync period
		p.inForce("[{10.13.0.0/16 }]")
		p.nat.chains["POSTROUTING"] = []string{"-j KUBE-POSTROUTING"}
		p.keeper.repair() // somebody tells
		settle(time.Second)
		p.inForce("[{10.13.0.0/16 }]")
		delete(p.sets.sets, "cali40masq-ipam-pools") // nobody can tell
		settle(canaryPeriod)
		p.inForce("[{10.13.0.0/16 }]")
		writes, steps := len(p.nat.writes), len(p.sets.steps)
		settle(time.Hour)
		if len(p.nat.writes) != writes || len(p.sets.steps) != steps {
			t.Errorf("%d and %d writes for nothing", len(p.nat.writes)-writes, len(p.sets.steps)-steps)
		}
	})
}

func TestPoolAgentTriesAgain(t *testing.T) {
	withPools(t, func(p *poolTest) {
		p.sets.fail = errors.New("no memory")
		p.source.changed <- struct{}{}
		p.source.pools = []*kube.Calico{ours}
		settle(500 * time.Millisecond)
		if code, state := p.state(); code != http.StatusServiceUnavailable || fmt.Sprint(state.Unhealthy) != "[no memory]" {
			t.Errorf("health %d, %q", code, state.Unhealthy)
		}
		settle(time.Second)
		p.inForce("[{10.13.0.0/16 }]")
		p.nat.fail = errors.New("locked")
		p.nat.chains["cali-nat-outgoing"] = nil
		p.keeper.repair()
		settle(2 * time.Second)
		p.inForce("[{10.13.0.0/16 }]")
		if code, state := p.state(); code != http.StatusOK || len(state.Unhealthy) > 0 {
			t.Errorf("health %d, %q", code, state.Unhealthy)
		}

		// A set that has to be made anew: without rules in between.
		n := len(p.nat.writes)
		p.sets.fail = fmt.Errorf("ipset restore: %w", kernel.ErrSetInUse)
		p.source.set(ours, theirs)
		p.inForce("[{10.13.0.0/16 } {198.51.100.0/24 }]")
		if got := p.nat.writes[n:]; len(got) != 2 || strings.Contains(got[0], "MASQUERADE") || !strings.Contains(got[1], "MASQUERADE") {
			t.Errorf("writes %q", got)
		}
	})
}

// TestPoolAgentReports: what is wrong with a version of an object is an event once, and what can be used of it is.
func TestPoolAgentReports(t *testing.T) {
	withPools(t, func(p *poolTest) {
		version := func(v, spec string) *kube.Calico {
			bad := pool("bad", spec)
			bad.ResourceVersion, bad.UID, bad.CreationTimestamp = v, "u", metav1.Now()
			return bad
		}
		p.source.set(ours, version("1", `{"cidr":"10.13.4.0/24","natoutgoing":true,"blockSize":1}`))
		if got, want := p.source.reported(),
			[]string{"InvalidIPPool bad 1: spec.natoutgoing: no such field, or one that packetwalk does not know; " +
				"spec.blockSize: 1; write 20 to 32; spec.cidr: overlaps pool default-ipv4-ippool"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		if got := fmt.Sprint(p.sets.sets["cali40all-ipam-pools"].Members); got != "[{10.13.0.0/16 } {10.13.4.0/24 }]" {
			t.Errorf("pools %s", got)
		}
		p.source.set(ours, version("1", `{"cidr":"10.13.4.0/24","natoutgoing":true,"blockSize":1}`))
		settle(5 * time.Minute)
		if got := p.source.reported(); len(got) != 0 {
			t.Errorf("told again: %q", got)
		}
		p.source.set(ours, version("2", `{"cidr":"nothing"}`))
		if got := p.source.reported(); len(got) != 1 || !strings.Contains(got[0], `bad 2: spec.cidr: "nothing" is no range`) {
			t.Errorf("events %q", got)
		}
		if code, state := p.state(); code != http.StatusOK || len(state.Problems) != 1 || state.Problems[0].Name != "bad" {
			t.Errorf("health %d, problems %+v", code, state.Problems)
		}
		p.source.set(ours)
		if _, state := p.state(); len(state.Problems) != 0 {
			t.Errorf("problems %+v", state.Problems)
		}
	})
}
