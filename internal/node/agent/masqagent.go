package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/node/serviceproxy"
	"packetwalk.dev/internal/syntax/iptables"
)

// ConfigSource is where the ip-masq agent gets its ConfigMaps from; *kube.ConfigMaps is one.
type ConfigSource interface {
	Run(ctx context.Context)
	Changed() <-chan struct{}
	Snapshot() (maps []*corev1.ConfigMap, complete bool)
	Read(ctx context.Context) ([]*corev1.ConfigMap, error)
	Warn(ctx context.Context, about *corev1.ConfigMap, component, host, reason, message string) error
}

const (
	masqComponent = "ip-masq-agent" // the source of events
	// masqGap is the least time between two looks at the kernel: a ConfigMap that flaps costs no more than that.
	masqGap = 100 * time.Millisecond
	// masqReadTimeout is how long the API server may take to answer the periodic question.
	masqReadTimeout = 10 * time.Second
	// masqRetry is how long a failed write waits at first; then twice as long each time, up to the resync interval.
	masqRetry = time.Second
	// masqEvents is the most events that one version of a ConfigMap gets.
	masqEvents = 8
)

// masqTarget is table nat of one family.
type masqTarget struct {
	family  service.Family
	applier serviceproxy.Applier
	ahead   []iptables.Rule // of POSTROUTING, that stand before the jump
}

// masqAgent keeps the ip-masq-agent's rules. It runs beside the service proxy's loop: neither waits for the other, and the rules of each are
// the other's only to look at.
type masqAgent struct {
	age      string
	options  ipmasq.Options
	resync   time.Duration // where the configuration has none of its own
	node     string
	source   ConfigSource
	targets  []masqTarget
	metrics  *masqMetrics
	state    *masqState
	repairs  chan struct{}
	config   *ipmasq.Config // the last one without errors; nil: none yet
	problems []ipmasq.Problem
	reported map[string]bool // events made for the present versions of the ConfigMaps
	failures int             // to write rules, in a row
	events   sync.WaitGroup
}

func newMasqAgent(o Options, source ConfigSource, targets []masqTarget, m *masqMetrics, log func(string, ...any)) *masqAgent {
	return &masqAgent{
		age: o.Rules, resync: o.MasqResync, node: o.NodeName, source: source, targets: targets, metrics: m,
		options: ipmasq.Options{Form: o.MasqForm, IPv6: slices.Contains(o.Families, service.IPv6)},
		state:   newMasqState(o, log), repairs: make(chan struct{}, 1), reported: map[string]bool{},
	}
}

// repair asks for a look at the kernel's rules; several make one. On nil, the agent of a node without, it does nothing.
func (m *masqAgent) repair() {
	if m == nil {
		return
	}
	select {
	case m.repairs <- struct{}{}:
	default:
	}
}

// run keeps the rules until the context ends, and leaves them in place.
func (m *masqAgent) run(ctx context.Context) {
	var watches sync.WaitGroup
	watches.Go(func() { m.source.Run(ctx) })
	defer watches.Wait()
	defer m.events.Wait()
	work := context.WithoutCancel(ctx) // what has begun is finished
	due := time.NewTimer(m.interval())
	for {
		trigger := ""
		select {
		case <-ctx.Done():
			return
		case <-m.source.Changed():
			trigger = "watch"
			if maps, complete := m.source.Snapshot(); complete {
				m.read(ctx, maps)
			}
		case <-due.C:
			trigger = "interval"
			m.reread(ctx)
		case <-m.repairs:
			trigger = "repair"
		}
		m.metrics.resyncs.WithLabelValues(trigger).Inc()
		m.apply(work)
		due.Reset(m.interval())
		select {
		case <-ctx.Done():
			return
		case <-time.After(masqGap):
		}
	}
}

// interval is how long nothing may happen before everything is looked at again.
func (m *masqAgent) interval() time.Duration {
	d := m.resync
	if m.options.Form == ipmasq.FormV1 && m.config != nil {
		d = m.config.ResyncInterval
	}
	if m.failures > 0 {
		return min(d, masqRetry<<min(m.failures-1, 10))
	}
	return d
}

func (m *masqAgent) reread(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, masqReadTimeout)
	defer cancel()
	maps, err := m.source.Read(ctx)
	if err != nil {
		if ctx.Err() == nil {
			m.state.log("%v; the last configuration stays", err)
		}
		return
	}
	m.read(ctx, maps)
}

// read takes what the ConfigMaps say, unless something is wrong with it: then what holds goes on holding.
func (m *masqAgent) read(ctx context.Context, maps []*corev1.ConfigMap) {
	config, problems := ipmasq.Parse(m.options, configFiles(maps))
	news := !slices.Equal(texts(problems), texts(m.problems))
	m.problems = problems
	m.metrics.noted(problems, config != nil)
	m.report(ctx, maps, problems)
	if news {
		for _, p := range problems {
			m.state.log("%s: ConfigMap %s, %s", p.Severity, p.ConfigMap, p)
		}
	}
	if config == nil {
		if news {
			m.state.log("the configuration is not applied; %s", m.holding())
		}
		m.state.refuse(problems)
		return
	}
	if m.config == nil || m.config.Text(m.options.Form) != config.Text(m.options.Form) {
		m.state.log("using config: %s", oneLineConfig(config))
	} else if news {
		m.state.log("using the config as before")
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

func (m *masqAgent) holding() string {
	if m.config == nil {
		return "the rules stay as they were found"
	}
	return "the one before stays in force"
}

// configFiles are the files that the ConfigMaps would be in a pod.
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

// oneLineConfig is a configuration as upstream's agents log it.
func oneLineConfig(c *ipmasq.Config) string {
	ranges := []string{}
	for _, r := range c.NonMasquerade {
		ranges = append(ranges, fmt.Sprintf("%q", r.Prefix))
	}
	s := fmt.Sprintf(`{"nonMasqueradeCIDRs":[%s],"masqLinkLocal":%v,"masqLinkLocalIPv6":%v}`, strings.Join(ranges, ","), c.MasqLinkLocal.On, c.MasqLinkLocalIPv6.On)
	if c.Default {
		s += " (no configuration was found: these are the defaults)"
	}
	return s
}

// report makes events of the problems, on the ConfigMaps that have them, once for each version of one.
func (m *masqAgent) report(ctx context.Context, maps []*corev1.ConfigMap, problems []ipmasq.Problem) {
	reported := map[string]bool{}
	for _, c := range maps {
		var mine []ipmasq.Problem
		for _, p := range problems {
			if p.ConfigMap == c.Namespace+"/"+c.Name {
				mine = append(mine, p)
			}
		}
		for i, p := range mine {
			reason, message := "InvalidIPMasqConfig", p.String()
			if p.Severity == ipmasq.Warning {
				reason = "SuspectIPMasqConfig"
			}
			if i == masqEvents-1 && len(mine) > masqEvents {
				message += fmt.Sprintf("; and %d more problems", len(mine)-masqEvents)
			}
			if i >= masqEvents {
				break
			}
			if p.Severity == ipmasq.Error {
				message += " (nothing of the new configuration is applied; the one before stays in force)"
			}
			key := string(c.UID) + c.ResourceVersion + message
			reported[key] = true
			if !m.reported[key] {
				m.warn(ctx, c, reason, message)
			}
		}
	}
	m.reported = reported
}

func (m *masqAgent) warn(ctx context.Context, about *corev1.ConfigMap, reason, message string) {
	m.events.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), masqReadTimeout)
		defer cancel()
		if err := m.source.Warn(ctx, about, masqComponent, m.node, reason, message); err != nil {
			m.state.log("%v", err)
		}
	})
}

// apply brings the kernel to the configuration.
func (m *masqAgent) apply(ctx context.Context) {
	if m.config == nil {
		return
	}
	failed := false
	for _, t := range m.targets {
		if err := m.applyTo(ctx, t); err != nil {
			failed = true
			m.metrics.failures.WithLabelValues(t.family.String()).Inc()
			m.state.log("write the %s rules: %v", t.family, err)
		}
	}
	if failed {
		m.failures++
		m.state.fail()
		return
	}
	m.failures = 0
	m.state.succeed()
}

func (m *masqAgent) applyTo(ctx context.Context, t masqTarget) error {
	set, err := ipmasq.Rules(m.age, t.family, m.config)
	if err != nil {
		return err
	}
	dump, err := t.applier.Save(ctx, iptables.NAT)
	if err != nil {
		return err
	}
	tables, err := iptables.Parse(dump)
	if err != nil {
		return fmt.Errorf("read table nat: %w", err)
	}
	var nat *iptables.Table
	for i := range tables {
		if tables[i].Name == iptables.NAT {
			nat = &tables[i]
		}
	}
	family := t.family.String()
	if edit := set.Edit(nat, t.ahead); !edit.IsZero() {
		start := time.Now()
		if err := t.applier.Restore(ctx, iptables.AppendRestore(nil, []iptables.Edit{edit})); err != nil {
			return err
		}
		m.metrics.writes.WithLabelValues(family).Inc()
		m.state.log("wrote %d %s rules in %v", edit.Rules(), t.family, time.Since(start).Round(time.Millisecond))
	}
	m.metrics.rules.WithLabelValues(family).Set(float64(1 + len(set.Chain)))
	m.metrics.lastSuccess.WithLabelValues(family).SetToCurrentTime()
	m.state.hold(t.family, set)
	return nil
}
