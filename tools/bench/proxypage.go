package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// writePage writes the page of the figures and its charts.
func (r *proxyResults) writePage(path string) error {
	dir := filepath.Dir(path)
	charts := []struct {
		file, title, axis string
		of                func(*measurement) float64
	}{
		{"performance-first.svg", "First sync", "seconds", func(m *measurement) float64 { return m.first.Seconds() }},
		{"performance-change.svg", "One endpoint changed", "milliseconds", func(m *measurement) float64 { return quantile(m.changes, .5) }},
	}
	for _, c := range charts {
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(r.chart(c.title, c.axis, c.of)), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte(r.page()), 0o644)
}

const pageHead = `# Service proxies side by side

` + "`make bench-proxy`" + ` wrote this page on %s, with %d processors, %s and Linux %s. The machine's load was
%s at the start and %s at the end. Other work on the machine makes times longer.

## How it was measured

- One API server and etcd run in a network namespace of their own, with warm caches.
- Each service has three endpoints. %d requests at a time create the objects through the API. The last step took %.0f s.
- Each service proxy starts on a node without rules, in a network namespace of its own.
- kube-proxy is upstream's. It is part of one program with the other components, which counts in its memory.
- iptables is %s.
- If the first sync of a service proxy took more than %.0f s, it is not tried with ten times as many services.

| figure | measured |
|---|---|
| First sync | from the start of the process until ` + "`kubeproxy_sync_proxy_rules_last_timestamp_seconds`" + ` appears |
| A change | from the API server's response until the kernel reports the transaction with the endpoint |
| CPU seconds for 1,000 changes | of 1,000 services, 200 a second; of the process and the programs that it ran |
| Connection | from SYN to SYN-ACK, from the node to a random service; past the services: to an endpoint |
| Kernel memory | what the kernel's slab frees when the node's namespace is removed, after the proxy has ended |

A change replaces or adds one endpoint of some service. Changes come one by one, 50 ms apart. Both proxies write iptables
at most once a second on average. A change by itself comes 2 s after the one before.

`

func (r *proxyResults) page() string {
	var b strings.Builder
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	version, _ := run(5*time.Second, "", "iptables", "--version")
	fmt.Fprintf(&b, pageHead, time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.Version(), strings.TrimSpace(string(kernel)),
		r.load, load(),
		proxyWorkers, r.filled[len(r.filled)-1].Seconds(), strings.TrimSpace(version), proxyTooLong.Seconds())
	b.WriteString("## Targets\n\n| | measured | target | | kube-proxy nftables |\n|---|---|---|---|---|\n")
	for _, t := range r.targets() {
		fmt.Fprintf(&b, "| %s | %.2f %s | ≤ %.2f | %s | %s |\n", t.name, t.is, t.unit, t.most, t.verdict(), t.elsewhere)
	}
	for _, t := range r.elsewhere() {
		fmt.Fprintf(&b, "| %s | measured elsewhere: `%s` | | | |\n", t.name, t.command)
	}
	b.WriteString("\n")
	for _, t := range []struct {
		title string
		of    func(*measurement) string
	}{{"First sync", firstSync}, {"A change, median", oneChange}, {"A change, p99", worstChange}, {"A change by itself, median", loneChange},
		{"Resident memory", memory}, {"Kernel memory of the rules", kernelMemory}, {"CPU seconds for 1,000 changes", cpuOfChanges},
		{"Connection to a service", firstPacket},
		{"Connection past the services", func(m *measurement) string { return shown(quantile(m.direct, .5)) }}} {
		r.table(&b, t.title, t.of)
	}
	b.WriteString("![First sync over the number of services](performance-first.svg)\n\n")
	b.WriteString("![A change over the number of services](performance-change.svg)\n")
	return b.String()
}

// load returns the machine's load average of the last minute.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// table has a column for each number of services.
func (r *proxyResults) table(b *strings.Builder, title string, of func(*measurement) string) {
	fmt.Fprintf(b, "## %s\n\n|", title)
	for _, n := range r.sizes() {
		fmt.Fprintf(b, " | %d", n)
	}
	b.WriteString(" |\n|---" + strings.Repeat("|---", len(r.sizes())) + "|\n")
	for _, p := range serviceProxies() {
		fmt.Fprintf(b, "| %s", p.name)
		for _, n := range r.sizes() {
			cell := "–"
			if m := r.of(p.name, n); m != nil {
				cell = of(m)
			}
			fmt.Fprintf(b, " | %s", cell)
		}
		b.WriteString(" |\n")
	}
	b.WriteString("\n")
}

// chart draws a figure of each proxy over the number of services, both axes logarithmic.
func (r *proxyResults) chart(title, axis string, of func(*measurement) float64) string {
	const width, height, left, bottom, right, top = 720, 400, 70, 50, 170, 40
	sizes := r.sizes()
	low, high := math.Inf(1), math.Inf(-1)
	for i := range r.all {
		if m := &r.all[i]; m.failed == "" {
			v := math.Log10(max(of(m), 1e-2))
			low, high = min(low, math.Floor(v)), max(high, math.Ceil(v))
		}
	}
	high = max(high, low+1)
	across := max(1, math.Log10(float64(sizes[len(sizes)-1])))
	x := func(n int) float64 { return left + math.Log10(float64(n))/across*(width-left-right) }
	y := func(v float64) float64 { return height - bottom - (v-low)/(high-low)*(height-top-bottom) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/><text x="%d" y="24" font-size="16">%s</text>`+"\n", width, height, left, title)
	for v := low; v <= high; v++ {
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", left, y(v), width-right,
			left-8, y(v)+4, math.Pow(10, v))
	}
	for _, n := range sizes {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x(n), height-bottom+20, n)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">services</text><text x="%d" y="%d">%s</text>`+"\n", (left+width-right)/2,
		height-10,
		8, top-8, axis)
	colours := []string{"#b35900", "#d62728", "#1f77b4", "#2ca02c"}
	for i, p := range serviceProxies() {
		r.line(&b, p.name, colours[i], x, y, of)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (r *proxyResults) line(b *strings.Builder, proxy, colour string, x func(int) float64, y func(float64) float64,
	of func(*measurement) float64) {
	path, command := "", "M"
	atX, atY := 0.0, 0.0
	for _, n := range r.sizes() {
		m := r.of(proxy, n)
		if m == nil {
			continue
		}
		atX, atY = x(n), y(math.Log10(max(of(m), 1e-2)))
		path += fmt.Sprintf("%s%.1f %.1f", command, atX, atY)
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", atX, atY, colour)
		command = "L"
	}
	if path != "" {
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%.1f" y="%.1f" fill="%s">%s</text>`+"\n", path, colour,
			atX+8, atY+4, colour, proxy)
	}
}
