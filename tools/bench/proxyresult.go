package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// The two with nftables, of which one has targets, some of them parts of what the other needs.
const (
	ours   = "packetwalk nftables"
	theirs = "kube-proxy nftables"
)

// proxyResults are those of one run.
type proxyResults struct {
	filled []time.Duration // for each number of services, how long the API server took for those that came
	all    []measurement
	load   string // of the machine at the start
}

func (r *proxyResults) add(m measurement) { r.all = append(r.all, m) }

// of returns the measurement of a proxy; nil if there is none, or if it failed.
func (r *proxyResults) of(proxy string, services int) *measurement {
	i := slices.IndexFunc(r.all, func(m measurement) bool { return m.proxy == proxy && m.services == services && m.failed == "" })
	if i < 0 {
		return nil
	}
	return &r.all[i]
}

// sizes returns the numbers of services, rising.
func (r *proxyResults) sizes() (sizes []int) {
	for _, m := range r.all {
		if !slices.Contains(sizes, m.services) {
			sizes = append(sizes, m.services)
		}
	}
	return sizes
}

// quantile returns one of sorted durations, in milliseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return ms(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))])
}

func (m *measurement) print() {
	if m.failed != "" {
		fmt.Printf("    %-20s failed: %s\n", m.proxy, m.failed)
		return
	}
	fmt.Printf("    %-20s first sync %6.2f s, a change %8.1f ms (p99 %8.1f, %3d), connect %5.2f ms (direct %.2f), %5.0f MB, rules %6.1f MB\n",
		m.proxy, m.first.Seconds(), quantile(m.changes, .5), quantile(m.changes, .99), len(m.changes), quantile(m.connects, .5),
		quantile(m.direct, .5), m.memory, m.slab)
	if m.cpu > 0 {
		fmt.Printf("    %-20s 1,000 changes of endpoints: %.2f CPU seconds\n", "", m.cpu.Seconds())
	}
	if s := m.minute; s != nil {
		fmt.Printf("    %-20s %d changes in %.0f s, %.0f a second: lost %d, lag median %.1f ms, p99 %.1f ms, most %.1f ms; %.2f cores\n", "",
			s.changes, s.took.Seconds(), s.second, s.lost, quantile(s.lags, .5), quantile(s.lags, .99), quantile(s.lags, 1), s.cores())
	}
}

// cores returns how many processors it used.
func (s *streamResult) cores() float64 { return s.cpu.Seconds() / s.took.Seconds() }

// target is one figure with what it is to be at most.
type target struct {
	name      string
	is, most  float64
	unit      string
	elsewhere string // what another proxy needs, for comparison
}

// verdict returns met or MISSED.
func (t *target) verdict() string {
	if t.is <= t.most {
		return "met"
	}
	return "MISSED"
}

// targets returns the targets that were measured.
func (r *proxyResults) targets() (all []target) {
	at := min(proxyDetail, slices.Max(r.sizes()))
	add := func(name string, is, most float64, unit, elsewhere string) {
		all = append(all, target{fmt.Sprintf(name, at), is, most, unit, elsewhere})
	}
	if m := r.of(ours, at); m != nil {
		add("%d services: first sync, from the process's start", m.first.Seconds(), 0.8, "s", r.figure(at, firstSync))
		add("%d services: a change in the kernel, median", quantile(m.changes, .5), 10, "ms", r.figure(at, oneChange))
		add("%d services: a change in the kernel, p99", quantile(m.changes, .99), 30, "ms", "")
		add("%d services: resident memory", m.memory, 70, "MB", r.figure(at, memory))
		if other := r.of(theirs, at); other != nil {
			add("%d services: kernel memory of the rules", m.slab, other.slab/4, "MB", r.figure(at, kernelMemory))
			add("%d services: CPU seconds for 1,000 changes", m.cpu.Seconds(), other.cpu.Seconds()/20, "s", r.figure(at, cpuOfChanges))
		}
		if s := m.minute; s != nil {
			add("%d services: 1,000 changes a second, lost", float64(s.lost), 0, "", "")
			add("%d services: 1,000 changes a second, lag p99", quantile(s.lags, .99), 50, "ms", "")
			add("%d services: 1,000 changes a second, cores", s.cores(), 1, "", "")
			add("%d services: 1,000 changes a second, short of", max(0, 990-s.second), 0, "/s", "")
		}
	}
	if m := r.of("packetwalk iptables", at); m != nil && at == proxyDetail {
		add("%d services: a change with iptables by itself, median", quantile(m.alone, .5), 150, "ms", "")
	}
	if m := r.of(ours, 100_000); m != nil {
		at = 100_000
		add("%d services: first sync, from the process's start", m.first.Seconds(), 5, "s", "")
		add("%d services: a change in the kernel, median", quantile(m.changes, .5), 20, "ms", "")
	}
	if one, m := r.of(ours, 1), r.of(ours, at); one != nil && m != nil && at > 1 {
		// Noise is what connections past the services differ by, and a fifth.
		add("%d services: a connection's first answer, beside 1 service", quantile(m.connects, .5)/quantile(one.connects, .5),
			max(1, quantile(m.direct, .5)/quantile(one.direct, .5))*1.2, "times", "")
	}
	return all
}

// skippedTarget is a target that a run does not measure, and the command that does.
type skippedTarget struct{ name, command string }

// elsewhere returns the targets that this run has not measured.
func (r *proxyResults) elsewhere() []skippedTarget {
	all := []skippedTarget{
		{"10000 services: a change with iptables-legacy, at most 0.7 s",
			"go test -run '^$' -bench Kernel/iptables-legacy -benchtime 1x ./internal/node/proxy/iptables"},
		{"100 nodes with 2000 pods: until all are Ready, and memory", "bin/bench -nodes 100 -pods 2000 scale"},
	}
	if r.of(ours, 100_000) == nil {
		all = append(all, skippedTarget{"100000 services: loading, first sync and changes", "make bench-proxy SERVICES=100000"})
	}
	return all
}

// figure returns kube-proxy's figure with nftables.
func (r *proxyResults) figure(services int, of func(*measurement) string) string {
	m := r.of(theirs, services)
	if m == nil {
		return ""
	}
	return of(m)
}

// judge prints the targets, also those that are measured elsewhere, and counts those that are missed.
func (r *proxyResults) judge(out io.Writer) (missed int) {
	for _, t := range r.targets() {
		if t.verdict() != "met" {
			missed++
		}
		if t.elsewhere != "" {
			t.elsewhere = "; kube-proxy nftables " + t.elsewhere
		}
		fmt.Fprintf(out, "  %-6s %-62s %8.2f %s (target %.2f%s)\n", t.verdict(), t.name, t.is, t.unit, t.most, t.elsewhere)
	}
	for _, t := range r.elsewhere() {
		fmt.Fprintf(out, "  %-6s %-62s measured elsewhere: %s\n", "", t.name, t.command)
	}
	return missed
}

// Figures as tables have them; "–" where nothing was measured.

func firstSync(m *measurement) string    { return fmt.Sprintf("%.2f s", m.first.Seconds()) }
func oneChange(m *measurement) string    { return shown(quantile(m.changes, .5)) }
func worstChange(m *measurement) string  { return shown(quantile(m.changes, .99)) }
func memory(m *measurement) string       { return fmt.Sprintf("%.0f MB", m.memory) }
func kernelMemory(m *measurement) string { return fmt.Sprintf("%.1f MB", m.slab) }
func firstPacket(m *measurement) string  { return shown(quantile(m.connects, .5)) }

func loneChange(m *measurement) string {
	if len(m.alone) == 0 {
		return "–"
	}
	return shown(quantile(m.alone, .5))
}

func cpuOfChanges(m *measurement) string {
	if m.cpu == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f s", m.cpu.Seconds())
}

// shown formats milliseconds with two or three digits that count.
func shown(ms float64) string {
	if ms < 10 {
		return fmt.Sprintf("%.2f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}
