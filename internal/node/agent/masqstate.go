package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// Paths of the ip-masq agent beside /metrics.
const (
	masqStatePath  = "/ip-masq-agent"         // the state as JSON
	masqHealthPath = "/ip-masq-agent/healthz" // 200, or 503 with the reasons
	masqLogPath    = "/ip-masq-agent/log"     // "N line" each; ?after=N waits for a later one
)

const (
	masqLogLines = 200              // that are kept
	masqLogWait  = 30 * time.Second // at most, for a new one
)

// masqMetrics are the ip-masq agent's, which upstream's does not have.
type masqMetrics struct {
	problems, rules, lastSuccess, resyncs, writes, failures *meter
	refused                                                 *series
}

// newMasqMetrics makes them, with counters that start at 0.
func newMasqMetrics(m *meters, families []service.Family) *masqMetrics {
	const prefix, family = "packetwalk_ip_masq_", "ip_family"
	made := &masqMetrics{
		problems: m.add("gauge", prefix+"config_problems",
			"Problems of the present configuration: an error keeps it from being applied.", "severity"),
		refused:  m.add("counter", prefix+"config_errors_total", "Configurations read that were not applied.", "").of(),
		resyncs:  m.add("counter", prefix+"resyncs_total", "Comparisons of rules with the configuration, by what asked for them.", "trigger"),
		writes:   m.add("counter", prefix+"writes_total", "Transactions that changed rules.", family),
		failures: m.add("counter", prefix+"write_failures_total", "Failures to read or write rules.", family),
		rules:    m.add("gauge", prefix+"rules", "Rules in force, with the jump from POSTROUTING.", family),
		lastSuccess: m.add("gauge", prefix+"last_success_timestamp_seconds",
			"When the rules were last found or made to be the configuration's.", family),
	}
	for _, by := range []trigger{byWatch, byInterval, byRepair} {
		made.resyncs.of(string(by))
	}
	for _, f := range families {
		made.writes.of(f.String())
		made.failures.of(f.String())
	}
	return made
}

// noted counts one reading of the configuration.
func (m *masqMetrics) noted(problems []ipmasq.Problem, applied bool) {
	count := map[ipmasq.Severity]int{}
	for _, p := range problems {
		count[p.Severity]++
	}
	for _, s := range []ipmasq.Severity{ipmasq.Error, ipmasq.Warning} {
		m.problems.of(string(s)).set(float64(count[s]))
	}
	if !applied {
		m.refused.add(1)
	}
}

// masqReport is the state as others see it.
type masqReport struct {
	Node    string      `json:"node"`
	Version string      `json:"rulesOf"` // the version of the rules: current, 1.19, …
	Form    ipmasq.Form `json:"form"`
	// Healthy: the present configuration is in force. Otherwise Unhealthy says why not.
	Healthy   bool     `json:"healthy"`
	Unhealthy []string `json:"unhealthy,omitempty"`
	// Config is in force; null before the first one that could be applied.
	Config   *ipmasq.Config                 `json:"config"`
	Problems []ipmasq.Problem               `json:"problems,omitempty"` // of the configuration that was read last
	Rules    map[string][]masqReportedRules `json:"rules,omitempty"`    // by family, the jump first
}

type masqReportedRules struct {
	Rule string          `json:"rule"` // as iptables-save prints it
	From []ipmasq.Origin `json:"from,omitempty"`
}

// masqState is what the agent lets others see; it is safe for concurrent use.
type masqState struct {
	logTo, warnTo logf

	mu        sync.Mutex
	stale     time.Duration // how old the last look at the kernel may be
	failed    error         // of the last look
	succeeded time.Time     // last look
	report    masqReport
	refused   bool // the configuration read last has errors
	lines     []string
	first     int           // the number of lines[0]
	more      chan struct{} // closed when a line is added
}

func newMasqState(o Options, log, warn logf) *masqState {
	return &masqState{
		stale: 3 * o.MasqResync, logTo: log, warnTo: warn, more: make(chan struct{}),
		first:  int(time.Now().UnixMilli()), // so that a reader's last line of an agent before this one comes before all of these
		report: masqReport{Node: o.NodeName, Version: o.Rules, Form: o.MasqForm, Rules: map[string][]masqReportedRules{}},
	}
}

func (s *masqState) log(format string, args ...any) { s.write(s.logTo, format, args) }

func (s *masqState) warn(format string, args ...any) { s.write(s.warnTo, format, args) }

// write adds a line to the agent's log, and to what masqLogPath has.
func (s *masqState) write(to logf, format string, args []any) {
	to("ip-masq-agent: "+format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, time.Now().UTC().Format("2006/01/02 15:04:05.000000 ")+fmt.Sprintf(format, args...))
	if n := len(s.lines) - masqLogLines; n > 0 {
		s.lines, s.first = s.lines[n:], s.first+n
	}
	close(s.more)
	s.more = make(chan struct{})
}

func (s *masqState) reject(problems []ipmasq.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Problems, s.refused = problems, true
}

func (s *masqState) accept(c *ipmasq.Config, problems []ipmasq.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Config, s.report.Problems, s.refused = c, problems, false
	if s.report.Form == ipmasq.FormV1 {
		s.stale = max(s.stale, 3*c.ResyncInterval)
	}
}

// note notes the outcome of a look at the kernel.
func (s *masqState) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed = err; err == nil {
		s.succeeded = time.Now()
	}
}

func (s *masqState) hold(f service.Family, set *ipmasq.RuleSet) {
	rule := func(chain string, r ipmasq.Rule) masqReportedRules {
		return masqReportedRules{string(iptables.AppendRule(nil, chain, &r.Rule)), r.From}
	}
	rules := []masqReportedRules{rule("POSTROUTING", set.Jump)}
	for _, r := range set.Chain {
		rules = append(rules, rule(ipmasq.Chain, r))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Rules[f.String()] = rules
}

// now returns the report of this moment.
func (s *masqState) now() masqReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.report
	r.Rules = maps.Clone(s.report.Rules)
	r.Unhealthy = append(s.refusalsLocked(), s.unreadyLocked()...)
	r.Healthy = len(r.Unhealthy) == 0
	return r
}

// refusals returns why the configuration read last is not applied, none where it is.
func (s *masqState) refusals() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusalsLocked()
}

func (s *masqState) refusalsLocked() (reasons []string) {
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
func (s *masqState) unready() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unreadyLocked()
}

func (s *masqState) unreadyLocked() []string {
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
func (s *masqState) serve(mux *http.ServeMux) {
	mux.HandleFunc(masqStatePath, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.now()) })
	mux.HandleFunc(masqHealthPath, func(w http.ResponseWriter, _ *http.Request) {
		r := s.now()
		writeHealth(w, r.Healthy, r.Unhealthy)
	})
	mux.HandleFunc(masqLogPath, s.serveLog)
}

// writeHealth is the answer of a health path: 200, or 503 with the reasons.
func writeHealth(w http.ResponseWriter, healthy bool, reasons []string) {
	status := http.StatusOK
	if !healthy {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, map[string]any{"healthy": healthy, "unhealthy": reasons})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // whoever went away does not need it
}

// serveLog gives the lines after the one of a number, and waits for one when there is none.
func (s *masqState) serveLog(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.Atoi(r.URL.Query().Get("after"))
	if err != nil && r.URL.Query().Get("after") != "" {
		http.Error(w, "after is the number of a line", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	wait := time.After(masqLogWait)
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
