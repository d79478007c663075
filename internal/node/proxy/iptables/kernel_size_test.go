package iptables

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/kerneltest"
)

// variants are iptables' programs, and how much one run of them may have.
var variants = map[string]int{"iptables-nft": 1500, "iptables-legacy": 0}

func eachVariant[T interface {
	testing.TB
	Run(string, func(T)) bool
}](t T, test func(t T, kernel *namespaceApplier)) {
	t.Helper()
	for prefix, most := range variants {
		t.Run(prefix, func(t T) {
			if _, err := exec.LookPath(prefix + "-restore"); err != nil {
				kerneltest.Missing(t, "%v", err)
			}
			kernel := newNamespace(t, service.IPv4)
			kernel.prefix, kernel.most = prefix, most
			test(t, kernel)
		})
	}
}

// oneLess has an endpoint less in the service port in the middle.
func oneLess(ports []service.Port) []service.Port {
	ports = slices.Clone(ports)
	p := &ports[len(ports)/2]
	p.ForCluster = p.ForCluster[1:]
	return ports
}

// TestKernelHoldsMany: more rules than go into one step are all there, beside those of others, and changes find their places among them.
func TestKernelHoldsMany(t *testing.T) {
	eachVariant(t, func(t *testing.T, kernel *namespaceApplier) {
		foreign := "*nat\n:DOCKER - [0:0]\n-A PREROUTING -j DOCKER\n-A DOCKER -i docker0 -j RETURN\nCOMMIT\n"
		if err := kernel.Restore(t.Context(), []byte(foreign)); err != nil {
			t.Fatal(err)
		}
		s := testSyncer(t, RulesCurrent, kernel)
		ports := manyPorts(1500)
		mustSync(t, s, ports...)
		for _, ports := range [][]service.Port{oneLess(ports), oneLess(ports[:1400]), ports[100:]} {
			mustSync(t, s, ports...)
			if names, err := s.Repair(t.Context()); err != nil || len(names) > 0 {
				t.Fatalf("not as it was written: %v, %v", names, err)
			}
		}
		if r := mustSync(t, testSyncer(t, RulesCurrent, kernel), ports[100:]...); !r.Full || r.Written["nat"] != 0 {
			t.Errorf("a restart writes %v", r.Written)
		}
		if err := s.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		dump, err := kernel.Save(t.Context(), "nat")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(strings.TrimSpace(foreign), "\n")[2:4] {
			if !strings.Contains(string(dump), line+"\n") {
				t.Errorf("foreign rule %q is gone", line)
			}
		}
		if strings.Contains(string(dump), "KUBE-S") {
			t.Error("chains are left behind")
		}
	})
}

// BenchmarkKernel measures the first sync of 10,000 service ports, beside iptables-restore itself loading the same into an empty table, and
// changes of one of them. It reports seconds, and seconds of a processor that iptables' programs had, which other work on the machine does
// not change much.
func BenchmarkKernel(b *testing.B) {
	eachVariant(b, func(b *testing.B, kernel *namespaceApplier) {
		ports := manyPorts(10_000)
		added := slices.Insert(slices.Clone(ports), 7000, manyPorts(10_001)[10_000])
		s, err := NewSyncer(proxy.Config{Family: service.IPv4, Rules: RulesCurrent, MasqueradeBit: 14}, kernel)
		if err != nil {
			b.Fatal(err)
		}
		took, cpu := map[string]time.Duration{}, map[string]time.Duration{}
		timed := func(what string, do func() error) {
			start, before := time.Now(), kernel.cpu
			if err := do(); err != nil {
				b.Fatal(err)
			}
			took[what], cpu[what] = took[what]+time.Since(start), cpu[what]+kernel.cpu-before
		}
		sync := func(ports []service.Port) func() error {
			return func() error { _, err := s.Sync(b.Context(), ports); return err }
		}
		for b.Loop() {
			if err := s.Remove(b.Context()); err != nil {
				b.Fatal(err)
			}
			timed("first-sync", sync(ports))
			dump, err := kernel.Save(b.Context(), "nat")
			if err != nil {
				b.Fatal(err)
			}
			timed("endpoint-changed", sync(oneLess(ports)))
			timed("endpoint-changed-back", sync(ports))
			timed("service-added", sync(added))
			timed("restarted", func() error { s.ForceFull(); return sync(added)() })
			empty := newNamespace(b, service.IPv4)
			timed("bare-restore", func() error {
				_, err := empty.run(b.Context(), dump, kernel.prefix+"-restore", "-w", "5")
				kernel.cpu += empty.cpu
				return err
			})
			s.ForceFull()
		}
		for what := range took {
			b.ReportMetric(took[what].Seconds()/float64(b.N), "s/"+what)
			b.ReportMetric(cpu[what].Seconds()/float64(b.N), "cpu-s/"+what)
		}
		b.ReportMetric(took["first-sync"].Seconds()/took["bare-restore"].Seconds(), "first-sync/bare")
		b.ReportMetric(cpu["first-sync"].Seconds()/cpu["bare-restore"].Seconds(), "cpu-first-sync/bare")
	})
}

// manyPorts returns n service ports with three endpoints each.
func manyPorts(n int) []service.Port {
	ports := make([]service.Port, 0, n)
	for i := range n {
		p := testPort(fmt.Sprintf("s%06d", i))
		p.ClusterIP, p.NodePort = netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}), 0
		for j := 3 * i; j < 3*i+3; j++ {
			at := netip.AddrFrom4([4]byte{10, 128 + byte(j>>16), byte(j >> 8), byte(j)})
			p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(at, 80), Ready: true, Serving: true})
		}
		p.ForCluster = p.Endpoints
		ports = append(ports, p)
	}
	return ports
}
