// Command bench measures what the README promises and prints figures: medians of several runs, and ratios to a peer measured in
// the same run. It never judges: a figure is for people to read, and a machine that is busy shows in the spread.
//
// It drives labs by the packetwalk command alone, and listens to their API and kernel. The service proxies are measured without a lab, as
// programs, against an API server of this program's own.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A benchmark is one thing that is measured; run does it n times.
type benchmark struct {
	name, about string
	run         func(n int) error
}

var benchmarks = []benchmark{
	{"answer", "up of one node to the first answer on the internet host, and down", benchAnswer},
	{"proxy", "kube-proxy and packetwalk-node, each with iptables and nftables, against one API server with 1 to -services services",
		benchProxy},
	{"capture", "captures: of a node with -services services, and of simulated clusters of up to -nodes nodes with -pods pods", benchCapture},
	{"scale", "nodes with pods: time until all are Ready, memory, down", benchScale},
}

// nodes are what the labs of answer and scale have.
var nodes struct {
	runtime     string
	backend     string // of their service proxy
	count, pods int    // of scale
}

func main() {
	n := flag.Int("n", 5, "runs of each benchmark (scale: one)")
	flag.StringVar(&nodes.runtime, "runtime", "containerd", "what runs pods in answer and scale: containerd; in scale also simulated")
	flag.StringVar(&nodes.backend, "backend", "iptables", "what the service proxy of answer and scale is made of: iptables or nftables")
	flag.IntVar(&nodes.count, "nodes", 20, "nodes of scale and capture")
	flag.IntVar(&nodes.pods, "pods", 600, "pods of scale and capture")
	flag.IntVar(&proxies.services, "services", 10_000, "most services of proxy: a power of ten, up to 100000")
	flag.DurationVar(&proxies.minute, "steady", time.Minute, "how long proxy makes 1,000 changes a second")
	flag.StringVar(&proxies.page, "page", "", "page that proxy writes, with two charts beside it")
	write := flag.String("write", "", "write the capture of a simulated cluster with -nodes, -pods and -services to a file, and measure nothing")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(),
			"usage: bench [-n RUNS] [-runtime containerd|simulated] [-backend iptables|nftables] [-nodes N] [-pods N] [-services N] [NAME...]")
		for _, b := range benchmarks {
			fmt.Fprintf(flag.CommandLine.Output(), "  %-11s %s\n", b.name, b.about)
		}
	}
	flag.Parse()
	if *write != "" {
		if err := writeSimulation(*write); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	fmt.Printf("%d processors, %s, packetwalk from %s\n", runtime.NumCPU(), runtime.Version(), bin)
	failed := false
	for _, b := range benchmarks {
		if flag.NArg() > 0 && !slices.Contains(flag.Args(), b.name) {
			continue
		}
		fmt.Printf("\n%s: %s\n", b.name, b.about)
		if err := b.run(*n); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", b.name, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// A series is one figure over several runs.
type series struct {
	name   string
	unit   string
	values []float64
}

func (s *series) add(v float64) { s.values = append(s.values, v) }

func (s *series) median() float64 {
	v := slices.Sorted(slices.Values(s.values))
	return v[len(v)/2]
}

// print gives the median and the spread.
func (s *series) print() {
	if len(s.values) == 0 {
		return
	}
	fmt.Printf("  %-52s %9.2f %-6s (%.2f to %.2f, %d runs)\n", s.name, s.median(), s.unit,
		slices.Min(s.values), slices.Max(s.values), len(s.values))
}

// table keeps series in the order in which they first appear.
type table struct{ series []*series }

func (t *table) add(name, unit string, v float64) {
	for _, s := range t.series {
		if s.name == name {
			s.add(v)
			return
		}
	}
	t.series = append(t.series, &series{name: name, unit: unit, values: []float64{v}})
}

func (t *table) print() {
	for _, s := range t.series {
		s.print()
	}
}

func indent(s string) string { return "  " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n  ") }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
