package masq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/agent/metrics"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/service"
)

// discard is a logger without output.
var discard = report.Logger{Logger: slog.New(slog.DiscardHandler)}

// tableNAT is a table nat that understands as much of iptables-restore's input as the ip-masq agent writes.
type tableNAT struct {
	mu     sync.Mutex
	rules  []string // "-A CHAIN …", a chain's in order
	writes int
	fail   error
}

func (n *tableNAT) Save(context.Context, string) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return nil, n.fail
	}
	text := "*nat\n:POSTROUTING ACCEPT [0:0]\n"
	if strings.Contains(strings.Join(n.rules, "\n"), "-A IP-MASQ-AGENT") {
		text += ":IP-MASQ-AGENT - [0:0]\n"
	}
	for _, r := range n.rules {
		text += r + "\n"
	}
	return []byte(text + "COMMIT\n"), nil
}

func (n *tableNAT) Restore(_ context.Context, input []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return n.fail
	}
	n.writes++
	for line := range strings.Lines(string(input)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, ":"):
			chain, _, _ := strings.Cut(line[1:], " ")
			n.drop(func(r string) bool { return strings.HasPrefix(r, "-A "+chain+" ") })
		case strings.HasPrefix(line, "-D "):
			n.drop(func(r string) bool { return r == "-A "+line[3:] })
		case strings.HasPrefix(line, "-A "):
			n.rules = append(n.rules, line)
		}
	}
	return nil
}

func (n *tableNAT) drop(which func(string) bool) {
	var left []string
	for _, r := range n.rules {
		if !which(r) {
			left = append(left, r)
		}
	}
	n.rules = left
}

// set changes the table behind the agent's back.
func (n *tableNAT) set(change func(n *tableNAT)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

// state returns how many rules there are and how many writes there were.
func (n *tableNAT) state() (rules, writes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.rules), n.writes
}

// returns lists the ranges of the chain's RETURN rules.
func (n *tableNAT) returns() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ranges []string
	for _, r := range n.rules {
		if f := strings.Fields(r); f[1] == ipmasq.Chain && f[2] == "-d" {
			ranges = append(ranges, f[3])
		}
	}
	return strings.Join(ranges, " ")
}

// someConfigs is a source that a test sets.
type someConfigs struct {
	mu      sync.Mutex
	maps    []*corev1.ConfigMap
	fail    error
	changed chan struct{}
	events  []string
}

func (s *someConfigs) set(version, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maps = []*corev1.ConfigMap{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: ipmasq.UserConfigMap, ResourceVersion: version},
		Data:       map[string]string{"ip-masq-agent": text},
	}}
}

// breaks makes readings fail.
func (s *someConfigs) breaks(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

func (s *someConfigs) Run(ctx context.Context)  { <-ctx.Done() }
func (s *someConfigs) Changed() <-chan struct{} { return s.changed }
func (s *someConfigs) Snapshot() ([]*corev1.ConfigMap, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maps, true
}

func (s *someConfigs) Read(context.Context) ([]*corev1.ConfigMap, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maps, s.fail
}

func (s *someConfigs) Warn(_ context.Context, about *corev1.ConfigMap, _, _, reason, message string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, about.ResourceVersion+" "+reason+" "+message)
	return nil
}

func (s *someConfigs) reported() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := strings.Join(s.events, "\n")
	s.events = nil
	return events
}

// withMasqAgent runs an ip-masq agent of form v1 on a fake clock.
func withMasqAgent(t *testing.T, f func(m *Agent, source *someConfigs, nat *tableNAT)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := options.Defaults()
		o.NodeName, o.Rules, o.MasqForm, o.MasqConfigMaps = "node0", "1.19", ipmasq.FormV1, []string{"mine"}
		source, nat := &someConfigs{changed: make(chan struct{}, 1)}, &tableNAT{}
		m := New(o, source, []Target{{Family: service.IPv4, Tables: nat}}, &metrics.Registry{}, discard)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.Run(ctx) })
		f(m, source, nat)
		cancel()
		running.Wait()
	})
}

// settle lets everything happen that happens within a time.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestAgentReadsAgainWhenNobodyTellsIt(t *testing.T) {
	withMasqAgent(t, func(m *Agent, source *someConfigs, nat *tableNAT) {
		source.set("1", "nonMasqueradeCIDRs: [10.1.0.0/16]\nmasqLinkLocal: true\nresyncInterval: 20s\n")
		source.changed <- struct{}{}
		settle(time.Second)
		if got := nat.returns(); got != "10.1.0.0/16" {
			t.Fatalf("RETURN for %q", got)
		}
		source.set("2", "nonMasqueradeCIDRs: [10.2.0.0/16]\nmasqLinkLocal: true\nresyncInterval: 20s\n") // the watch is dead
		settle(18 * time.Second)
		if got := nat.returns(); got != "10.1.0.0/16" {
			t.Errorf("before the interval: RETURN for %q", got)
		}
		settle(2 * time.Second)
		if got := nat.returns(); got != "10.2.0.0/16" {
			t.Errorf("after the interval: RETURN for %q", got)
		}

		// The resync also finds rules that another process added, for which there is no notice. It writes nothing where nothing differs.
		nat.set(func(n *tableNAT) { n.rules = append(n.rules, "-A IP-MASQ-AGENT -j ACCEPT") })
		settle(20 * time.Second)
		rules, before := nat.state()
		if rules != 3 {
			t.Errorf("%d rules, want 3", rules)
		}
		settle(5 * time.Minute)
		if _, writes := nat.state(); writes != before {
			t.Errorf("%d writes for nothing", writes-before)
		}

		// While the API does not answer the configuration holds, and rules are looked after.
		source.breaks(errors.New("no API server"))
		nat.set(func(n *tableNAT) { n.rules = nil })
		settle(20 * time.Second)
		if got := nat.returns(); got != "10.2.0.0/16" {
			t.Errorf("without the API server: RETURN for %q", got)
		}
	})
}

func TestAgentTriesAgain(t *testing.T) {
	withMasqAgent(t, func(m *Agent, source *someConfigs, nat *tableNAT) {
		if r := m.state.now(); r.Healthy || !strings.Contains(fmt.Sprint(r.Unhealthy), "no configuration has been read yet") {
			t.Errorf("before the start: %+v", r)
		}
		nat.set(func(n *tableNAT) { n.fail = errors.New("busy") })
		source.set("1", "nonMasqueradeCIDRs: [10.1.0.0/16]\n")
		source.changed <- struct{}{}
		settle(time.Second)
		if r := m.state.now(); r.Healthy || !strings.Contains(fmt.Sprint(r.Unhealthy), "could not be written") {
			t.Errorf("after a failure: %+v", r)
		}
		nat.set(func(n *tableNAT) { n.fail = nil })
		settle(3 * time.Second)
		if r := m.state.now(); !r.Healthy || nat.returns() != "169.254.0.0/16 10.1.0.0/16" {
			t.Errorf("RETURN for %q, %+v", nat.returns(), r)
		}
	})
}

// TestAgentKeepsItsConfig: with MasqKeep a ConfigMap that is not there, as while everything is deleted, leaves the configuration, or
// the rules as they were found, and says so; otherwise the defaults hold.
func TestAgentKeepsItsConfig(t *testing.T) {
	const defaults = "169.254.0.0/16 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16"
	for keep, want := range map[bool][2]string{true: {"", "169.254.0.0/16 10.1.0.0/16"}, false: {defaults, defaults}} {
		withMasqAgent(t, func(m *Agent, source *someConfigs, nat *tableNAT) {
			m.keep = keep
			source.changed <- struct{}{}
			settle(time.Second)
			if got := nat.returns(); got != want[0] || m.state.now().Healthy == keep {
				t.Errorf("keep %v, before there is one: RETURN for %q, %+v", keep, got, m.state.now())
			}
			source.set("1", "nonMasqueradeCIDRs: [10.1.0.0/16]\n")
			source.changed <- struct{}{}
			settle(time.Second)
			if r := m.state.now(); !r.Healthy {
				t.Errorf("keep %v: %+v", keep, r)
			}
			source.mu.Lock()
			source.maps = nil
			source.mu.Unlock()
			source.changed <- struct{}{}
			settle(5 * time.Minute) // it is read again, too
			r := m.state.now()
			if got := nat.returns(); got != want[1] || r.Healthy == keep {
				t.Errorf("keep %v, deleted: RETURN for %q, %+v", keep, got, r)
			}
			said := "ConfigMap kube-system/mine, no configuration was found there; write the key ip-masq-agent"
			if keep && !slices.Equal(r.Unhealthy, []string{said}) {
				t.Errorf("unhealthy: %q", r.Unhealthy)
			}
		})
	}
}

func TestAgentReportsEachVersionOnce(t *testing.T) {
	withMasqAgent(t, func(m *Agent, source *someConfigs, nat *tableNAT) {
		apply := func(version, text string) string {
			source.set(version, text)
			source.changed <- struct{}{}
			settle(time.Second)
			return source.reported()
		}
		const wrong = "nonMasqueradeCIDRs: [10.1.0.1/16, \"\"]\n"
		want := `1 InvalidIPMasqConfig key ip-masq-agent, nonMasqueradeCIDRs[0]: 10.1.0.1/16 is not aligned: 10.1.0.1 has bits set after the first 16; write 10.1.0.0/16 (nothing of the new configuration is applied; the one before stays in force)
1 InvalidIPMasqConfig key ip-masq-agent, nonMasqueradeCIDRs[1]: the entry is empty; write a range, such as 10.0.0.0/8, or take the entry out (nothing of the new configuration is applied; the one before stays in force)`
		got := strings.Split(apply("1", wrong), "\n")
		if len(got) == 2 && got[0] > got[1] { // each is sent by itself
			got[0], got[1] = got[1], got[0]
		}
		if diff := cmp.Diff(want, strings.Join(got, "\n")); diff != "" {
			t.Error(diff)
		}
		settle(10 * time.Minute)
		if again := source.reported(); again != "" {
			t.Errorf("reported again: %s", again)
		}
		if _, writes := nat.state(); writes > 0 {
			t.Errorf("%d writes", writes)
		}
		if got := apply("2", wrong); strings.Count(got, "2 InvalidIPMasqConfig") != 2 {
			t.Errorf("the next version: %s", got)
		}
		var many []string
		for i := range 20 {
			many = append(many, fmt.Sprintf("10.0.0.%d/8", i+1))
		}
		if got := apply("3", "nonMasqueradeCIDRs: ["+strings.Join(many, ", ")+"]\n"); strings.Count(got, "3 Invalid") != maxEvents ||
			!strings.Contains(got, "; and 12 more problems") {
			t.Errorf("many problems: %s", got)
		}
		if got := apply("4", "nonMasqueradeCIDRs: []\n"); strings.Count(got, "4 SuspectIPMasqConfig") != 1 || nat.returns() != "169.254.0.0/16" {
			t.Errorf("an emptied list: %s; RETURN for %q", got, nat.returns())
		}
		if got := apply("5", "nonMasqueradeCIDRs: [10.1.0.0/16]\n"); got != "" || !m.state.now().Healthy {
			t.Errorf("a good one: %s", got)
		}
	})
}
