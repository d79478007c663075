// Package masq is the ip-masq-agent: it keeps the rules of the configuration in its ConfigMaps, and serves its state, health and log.
package masq

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/agent/metrics"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/reconcile"
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/ipmasq"
	iptablesproxy "packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// trigger names the cause of a look at the ip-masq-agent's rules.
type trigger string

const (
	byWatch    trigger = "watch"    // the API has changed
	byInterval trigger = "interval" // the period is over
	byRepair   trigger = "repair"   // rules were changed
)

// gap is the least time between two looks at the kernel, however fast changes come.
const gap = 100 * time.Millisecond

// Source gives the agent its ConfigMaps; *kube.ConfigMaps implements it.
type Source interface {
	Run(ctx context.Context)
	Changed() <-chan struct{}
	Snapshot() (maps []*corev1.ConfigMap, complete bool)
	Read(ctx context.Context) ([]*corev1.ConfigMap, error)
	Warn(ctx context.Context, about *corev1.ConfigMap, component, host, reason, message string) error
}

const (
	component = "ip-masq-agent" // the source of events
	maxEvents = 8               // the most that one version of a ConfigMap gets
)

// Target is table nat of one family.
type Target struct {
	Family service.Family
	Tables iptablesproxy.Tables
	Ahead  []iptables.Rule // of POSTROUTING, that stand before the jump
}

// Agent keeps the ip-masq-agent's rules.
type Agent struct {
	version  string
	parsing  ipmasq.Options
	resync   time.Duration // where the configuration has none of its own
	keep     bool          // without a configuration, that of before
	names    []string      // of the ConfigMaps
	node     string
	source   Source
	targets  []Target
	metrics  *agentMetrics
	state    *state
	config   *ipmasq.Config // the last one without errors; nil: none yet
	problems []ipmasq.Problem
	sent     map[string]bool // events of the configuration that was read last
	repairs  chan struct{}
	asked    []trigger         // for a look, since the last one
	earliest time.Time         // of a look that is asked for
	next     time.Time         // of a look that nothing asks for
	retry    reconcile.Backoff // up to the period
}

// New returns an agent of a node, with metrics in a registry.
func New(o options.Options, source Source, targets []Target, registry *metrics.Registry, logger report.Logger) *Agent {
	return &Agent{
		version: o.Rules, resync: o.MasqResync, node: o.NodeName, source: source, targets: targets, metrics: newMetrics(registry, o.Families),
		keep: o.MasqKeep, names: o.MasqConfigMaps,
		parsing: ipmasq.Options{Form: o.MasqForm, IPv6: slices.Contains(o.Families, service.IPv6)},
		state:   newState(o, logger),
		repairs: make(chan struct{}, 1),
	}
}

// Repair asks for a comparison with the kernel's rules; several make one.
func (m *Agent) Repair() {
	select {
	case m.repairs <- struct{}{}:
	default:
	}
}

// Run keeps the rules until the context ends, and leaves them in place.
func (m *Agent) Run(ctx context.Context) {
	watches := make(chan struct{})
	go func() { defer close(watches); m.source.Run(ctx) }()
	defer func() { <-watches }()
	m.next = time.Now().Add(m.period())
	r := reconcile.Loop{
		Changed: reconcile.Wakeup{From: m.source.Changed(), Note: func() { m.ask(byWatch) }},
		Damaged: reconcile.Wakeup{From: m.repairs, Note: func() { m.ask(byRepair) }},
		Tasks:   []reconcile.Task{{Until: m.untilReconcile, Run: m.reconcile}},
	}
	r.Run(ctx)
}

// ask asks for a look.
func (m *Agent) ask(by trigger) {
	if !slices.Contains(m.asked, by) {
		m.asked = append(m.asked, by)
	}
}

// untilReconcile returns the time until the next reconcile.
func (m *Agent) untilReconcile(now time.Time) time.Duration {
	if len(m.asked) > 0 {
		return max(0, m.earliest.Sub(now))
	}
	return max(0, reconcile.Later(m.earliest, m.next).Sub(now))
}

// reconcile reads the configuration and writes its rules.
func (m *Agent) reconcile(ctx context.Context) {
	if len(m.asked) == 0 {
		m.ask(byInterval)
	}
	for _, by := range m.asked {
		m.read(ctx, by)
	}
	m.asked = nil
	ok := m.apply(ctx) == nil
	wait := m.period()
	m.retry.Max = wait
	if m.retry.After(ok); !ok {
		wait = m.retry.Wait
	}
	now := time.Now()
	m.earliest, m.next = now.Add(gap), now.Add(wait)
}

// period returns how often the configuration is read again.
func (m *Agent) period() time.Duration {
	if m.parsing.Form == ipmasq.FormV1 && m.config != nil {
		return m.config.ResyncInterval
	}
	return m.resync
}

// Serve adds the agent's paths.
func (m *Agent) Serve(mux *http.ServeMux) { m.state.serve(mux) }

// Refusals returns why the configuration read last is not applied, none where it is.
func (m *Agent) Refusals() []string { return m.state.refusals() }

// Unready returns why the configuration that was accepted last is not in force, none where it is.
func (m *Agent) Unready() []string { return m.state.unready() }

// read takes the configuration; at the interval from the API server itself, since a watch may have died without a word.
func (m *Agent) read(ctx context.Context, by trigger) {
	m.metrics.resyncs.Of(string(by)).Add(1)
	switch by {
	case byWatch:
		if maps, complete := m.source.Snapshot(); complete {
			m.applyConfig(ctx, maps)
		}
	case byInterval:
		m.reread(ctx)
	}
}

func (m *Agent) reread(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, report.Timeout)
	defer cancel()
	maps, err := m.source.Read(ctx)
	if err != nil {
		if ctx.Err() == nil {
			m.state.warnf("%v; the last configuration stays", err)
		}
		return
	}
	m.applyConfig(ctx, maps)
}

// applyConfig uses the configuration of the ConfigMaps. If that has problems, the one in use stays.
func (m *Agent) applyConfig(ctx context.Context, maps []*corev1.ConfigMap) {
	config, problems := ipmasq.Parse(m.parsing, configFiles(maps))
	if m.keep && config != nil && config.Default {
		config, problems = nil, append(problems, ipmasq.Problem{
			Origin:   ipmasq.Origin{ConfigMap: metav1.NamespaceSystem + "/" + strings.Join(m.names, ",")},
			Severity: ipmasq.Error, Message: "no configuration was found there", Remedy: "write the key " + ipmasq.FileV1})
	}
	news := !slices.Equal(texts(problems), texts(m.problems))
	m.problems = problems
	m.metrics.noted(problems, config != nil)
	m.report(ctx, maps, problems)
	if news {
		for _, p := range problems {
			m.state.warnf("%s: ConfigMap %s, %s", p.Severity, p.ConfigMap, p)
		}
	}
	if config == nil {
		if news {
			m.state.warnf("the configuration is not applied; %s", m.fallbackText())
		}
		m.state.reject(problems)
		return
	}
	if m.config == nil || m.config.Text(m.parsing.Form) != config.Text(m.parsing.Form) {
		m.state.logf("using config: %s", oneLineConfig(config))
	} else if news {
		m.state.logf("using the config as before")
	}
	m.config = config
	m.state.accept(config, problems)
}

func texts(problems []ipmasq.Problem) []string {
	var s []string
	for _, p := range problems {
		s = append(s, string(p.Severity)+p.ConfigMap+p.String())
	}
	return s
}

// fallbackText says what is in force while a configuration is invalid.
func (m *Agent) fallbackText() string {
	if m.config == nil {
		return "the rules stay as they were found"
	}
	return "the one before stays in force"
}

// configFiles returns the files that the ConfigMaps would be in a pod.
func configFiles(maps []*corev1.ConfigMap) []ipmasq.File {
	var files []ipmasq.File
	for _, c := range maps {
		name := c.Namespace + "/" + c.Name
		for key, text := range c.Data {
			files = append(files, ipmasq.File{ConfigMap: name, Key: key, Text: text})
		}
		for key, data := range c.BinaryData {
			files = append(files, ipmasq.File{ConfigMap: name, Key: key, Text: string(data)})
		}
	}
	return files
}

// oneLineConfig returns a configuration as upstream's agents log it.
func oneLineConfig(c *ipmasq.Config) string {
	ranges := []string{}
	for _, r := range c.NonMasquerade {
		ranges = append(ranges, fmt.Sprintf("%q", r.Prefix))
	}
	s := fmt.Sprintf(`{"nonMasqueradeCIDRs":[%s],"masqLinkLocal":%v,"masqLinkLocalIPv6":%v}`,
		strings.Join(ranges, ","), c.MasqLinkLocal.On, c.MasqLinkLocalIPv6.On)
	if c.Default {
		s += " (no configuration was found: these are the defaults)"
	}
	return s
}

// report makes events of the problems, on the ConfigMaps that have them, once for each version of one.
func (m *Agent) report(ctx context.Context, maps []*corev1.ConfigMap, problems []ipmasq.Problem) {
	events := map[string]func(context.Context) error{}
	for _, c := range maps {
		mine := slices.DeleteFunc(slices.Clone(problems), func(p ipmasq.Problem) bool { return p.ConfigMap != c.Namespace+"/"+c.Name })
		for i, p := range mine[:min(len(mine), maxEvents)] {
			reason, message := "InvalidIPMasqConfig", p.String()
			if p.Severity == ipmasq.Warning {
				reason = "SuspectIPMasqConfig"
			}
			if i == maxEvents-1 && len(mine) > maxEvents {
				message += fmt.Sprintf("; and %d more problems", len(mine)-maxEvents)
			}
			if p.Severity == ipmasq.Error {
				message += " (nothing of the new configuration is applied; the one before stays in force)"
			}
			events[string(c.UID)+c.ResourceVersion+message] = func(ctx context.Context) error {
				return m.source.Warn(ctx, c, component, m.node, reason, message)
			}
		}
	}
	m.send(ctx, events)
}

// send sends the events, by keys of object, version and message, that were not sent the last time.
func (m *Agent) send(ctx context.Context, events map[string]func(context.Context) error) {
	sent := map[string]bool{}
	for key, send := range events {
		if sent[key] = true; !m.sent[key] {
			report.InBackground(ctx, m.state.warnf, send)
		}
	}
	m.sent = sent
}

// apply brings the kernel to the configuration.
func (m *Agent) apply(ctx context.Context) error {
	if m.config == nil {
		return nil
	}
	var failed error
	for _, t := range m.targets {
		if err := m.applyTo(ctx, t); err != nil {
			failed = fmt.Errorf("the %s rules could not be written: %w", t.Family, err)
			m.metrics.failures.Of(t.Family.String()).Add(1)
			m.state.warnf("%v", failed)
		}
	}
	m.state.note(failed)
	return failed
}

func (m *Agent) applyTo(ctx context.Context, t Target) error {
	set, err := ipmasq.Rules(m.version, t.Family, m.config)
	if err != nil {
		return err
	}
	start := time.Now()
	wrote, err := iptablescmd.EditNAT(ctx, t.Tables, func(nat *iptables.Table) iptables.Edit { return set.Edit(nat, t.Ahead) })
	if err != nil {
		return err
	}
	family := t.Family.String()
	if wrote > 0 {
		m.metrics.writes.Of(family).Add(1)
		m.state.logf("wrote %d %s rules in %v", wrote, t.Family, time.Since(start).Round(time.Millisecond))
	}
	m.metrics.rules.Of(family).Set(float64(1 + len(set.Chain)))
	m.metrics.lastSuccess.Of(family).SetNow()
	m.state.hold(t.Family, set)
	return nil
}
