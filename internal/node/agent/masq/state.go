package masq

import (
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"packetwalk.dev/internal/node/agent/metrics"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// Paths of the ip-masq agent beside /metrics.
const (
	StatePath  = "/ip-masq-agent"         // the state as JSON
	HealthPath = "/ip-masq-agent/healthz" // 200, or 503 with the reasons
	LogPath    = "/ip-masq-agent/log"     // "N line" each; ?after=N waits for a later one
)

const (
	logLines = 200              // that are kept
	logWait  = 30 * time.Second // at most, for a new one
)

// agentMetrics are the ip-masq agent's, which upstream's does not have.
type agentMetrics struct {
	problems, rules, lastSuccess, resyncs, writes, failures *metrics.Metric
	refused                                                 *metrics.Series
}

// newMetrics makes the metrics, with counters that start at 0.
func newMetrics(m *metrics.Registry, families []service.Family) *agentMetrics {
	const prefix, family = "packetwalk_ip_masq_", "ip_family"
	made := &agentMetrics{
		problems: m.Add("gauge", prefix+"config_problems",
			"Problems of the present configuration: an error keeps it from being applied.", "severity"),
		refused:  m.Add("counter", prefix+"config_errors_total", "Configurations read that were not applied.", "").Of(),
		resyncs:  m.Add("counter", prefix+"resyncs_total", "Comparisons of rules with the configuration, by what asked for them.", "trigger"),
		writes:   m.Add("counter", prefix+"writes_total", "Transactions that changed rules.", family),
		failures: m.Add("counter", prefix+"write_failures_total", "Failures to read or write rules.", family),
		rules:    m.Add("gauge", prefix+"rules", "Rules in force, with the jump from POSTROUTING.", family),
		lastSuccess: m.Add("gauge", prefix+"last_success_timestamp_seconds",
			"When the rules were last found or made to be the configuration's.", family),
	}
	for _, by := range []trigger{byWatch, byInterval, byRepair} {
		made.resyncs.Of(string(by))
	}
	for _, f := range families {
		made.writes.Of(f.String())
		made.failures.Of(f.String())
	}
	return made
}

// noted counts one reading of the configuration.
func (m *agentMetrics) noted(problems []ipmasq.Problem, applied bool) {
	count := map[ipmasq.Severity]int{}
	for _, p := range problems {
		count[p.Severity]++
	}
	for _, s := range []ipmasq.Severity{ipmasq.Error, ipmasq.Warning} {
		m.problems.Of(string(s)).Set(float64(count[s]))
	}
	if !applied {
		m.refused.Add(1)
	}
}

// stateReport is the state as others see it.
type stateReport struct {
	Node    string      `json:"node"`
	Version string      `json:"rulesOf"` // the version of the rules: current, 1.19, …
	Form    ipmasq.Form `json:"form"`
	// Healthy: the present configuration is in force. Otherwise Unhealthy says why not.
	Healthy   bool     `json:"healthy"`
	Unhealthy []string `json:"unhealthy,omitempty"`
	// Config is in force; null before the first one that could be applied.
	Config   *ipmasq.Config            `json:"config"`
	Problems []ipmasq.Problem          `json:"problems,omitempty"` // of the configuration that was read last
	Rules    map[string][]reportedRule `json:"rules,omitempty"`    // by family, the jump first
}

type reportedRule struct {
	Rule string          `json:"rule"` // as iptables-save prints it
	From []ipmasq.Origin `json:"from,omitempty"`
}

// state is what the agent lets others see; it is safe for concurrent use.
type state struct {
	logger report.Logger

	mu        sync.Mutex
	stale     time.Duration // how old the last look at the kernel may be
	failed    error         // of the last look
	succeeded time.Time     // last look
	report    stateReport
	refused   bool // the configuration read last has errors
	lines     []string
	first     int           // the number of lines[0]
	more      chan struct{} // closed when a line is added
}

func newState(o options.Options, logger report.Logger) *state {
	return &state{
		stale: 3 * o.MasqResync, logger: logger, more: make(chan struct{}),
		first:  int(time.Now().UnixMilli()), // so that a reader's last line of an agent before this one comes before all of these
		report: stateReport{Node: o.NodeName, Version: o.Rules, Form: o.MasqForm, Rules: map[string][]reportedRule{}},
	}
}

func (s *state) logf(format string, args ...any) {
	s.write(s.logger.Info, fmt.Sprintf(format, args...))
}

func (s *state) warnf(format string, args ...any) {
	s.write(s.logger.Warn, fmt.Sprintf(format, args...))
}

// write adds a line to the log of the node's agent, and to that at LogPath.
func (s *state) write(to func(string, ...any), line string) {
	to("ip-masq-agent: " + line)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, time.Now().UTC().Format("2006/01/02 15:04:05.000000 ")+line)
	if n := len(s.lines) - logLines; n > 0 {
		s.lines, s.first = s.lines[n:], s.first+n
	}
	close(s.more)
	s.more = make(chan struct{})
}

func (s *state) reject(problems []ipmasq.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Problems, s.refused = problems, true
}

func (s *state) accept(c *ipmasq.Config, problems []ipmasq.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Config, s.report.Problems, s.refused = c, problems, false
	if s.report.Form == ipmasq.FormV1 {
		s.stale = max(s.stale, 3*c.ResyncInterval)
	}
}

// note notes the outcome of a look at the kernel.
func (s *state) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed = err; err == nil {
		s.succeeded = time.Now()
	}
}

func (s *state) hold(f service.Family, set *ipmasq.RuleSet) {
	rule := func(chain string, r ipmasq.Rule) reportedRule {
		return reportedRule{string(iptables.AppendRule(nil, chain, &r.Rule)), r.From}
	}
	rules := []reportedRule{rule("POSTROUTING", set.Jump)}
	for _, r := range set.Chain {
		rules = append(rules, rule(ipmasq.Chain, r))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Rules[f.String()] = rules
}

// now returns the report of this moment.
func (s *state) now() stateReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.report
	r.Rules = maps.Clone(s.report.Rules)
	r.Unhealthy = append(s.refusalsLocked(), s.unreadyLocked()...)
	r.Healthy = len(r.Unhealthy) == 0
	return r
}

// refusals returns why the configuration read last is not applied, none where it is.
func (s *state) refusals() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusalsLocked()
}

func (s *state) refusalsLocked() (reasons []string) {
	if !s.refused {
		return nil
	}
	for _, p := range s.report.Problems {
		if p.Severity == ipmasq.Error {
			reasons = append(reasons, "ConfigMap "+p.ConfigMap+", "+p.String())
		}
	}
	return reasons
}

// unready returns why the configuration that was accepted last is not in force, none where it is.
func (s *state) unready() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unreadyLocked()
}

func (s *state) unreadyLocked() []string {
	switch {
	case s.failed != nil:
		return []string{s.failed.Error()}
	case s.succeeded.IsZero() && !s.refused:
		return []string{"no configuration has been read yet"}
	case !s.succeeded.IsZero() && time.Since(s.succeeded) > s.stale:
		return []string{"not looked at since " + s.succeeded.UTC().Format(time.RFC3339)}
	}
	return nil
}

// serve adds the agent's paths.
func (s *state) serve(mux *http.ServeMux) {
	mux.HandleFunc(StatePath, func(w http.ResponseWriter, _ *http.Request) { report.WriteJSON(w, http.StatusOK, s.now()) })
	mux.HandleFunc(HealthPath, func(w http.ResponseWriter, _ *http.Request) {
		r := s.now()
		writeHealth(w, r.Healthy, r.Unhealthy)
	})
	mux.HandleFunc(LogPath, s.serveLog)
}

// writeHealth answers a health path: 200, or 503 with the reasons.
func writeHealth(w http.ResponseWriter, healthy bool, reasons []string) {
	status := http.StatusOK
	if !healthy {
		status = http.StatusServiceUnavailable
	}
	report.WriteJSON(w, status, map[string]any{"healthy": healthy, "unhealthy": reasons})
}

// serveLog gives the lines after the one of a number, and waits for one when there is none.
func (s *state) serveLog(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.Atoi(r.URL.Query().Get("after"))
	if err != nil && r.URL.Query().Get("after") != "" {
		http.Error(w, "after is the number of a line", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	wait := time.After(logWait)
	for {
		s.mu.Lock()
		lines, first, more := s.lines, s.first, s.more
		s.mu.Unlock()
		if last := first + len(lines) - 1; after > last { // the clock was set back
			after = 0
		}
		if skip := max(0, after-first+1); skip < len(lines) {
			for i, line := range lines[skip:] {
				fmt.Fprintf(w, "%d %s\n", first+skip+i, line)
			}
			return
		}
		select {
		case <-more:
		case <-wait:
			return
		case <-r.Context().Done():
			return
		}
	}
}
