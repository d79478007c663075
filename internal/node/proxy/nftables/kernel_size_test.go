package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
)

// manyPorts returns n service ports with three endpoints each.
func manyPorts(n int) []service.Port {
	ports := make([]service.Port, n)
	for i := range ports {
		p := &ports[i]
		p.Name, p.Protocol, p.Port = service.Name{Namespace: "ns", Service: fmt.Sprintf("s%06d", i)}, service.TCP, 80
		p.ClusterIP = netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})
		for j := range 3 {
			k := i*3 + j
			a := netip.AddrFrom4([4]byte{10, 128 + byte(k>>16), byte(k >> 8), byte(k)})
			p.Endpoints = append(p.Endpoints, service.Endpoint{Addr: netip.AddrPortFrom(a, 8080), Ready: true, Serving: true})
		}
		p.ForCluster = p.Endpoints
	}
	return ports
}

// oneLess has an endpoint less in the service port in the middle.
func oneLess(ports []service.Port) []service.Port {
	ports = slices.Clone(ports)
	p := &ports[len(ports)/2]
	p.ForCluster = p.ForCluster[:len(p.ForCluster)-1]
	return ports
}

var many = proxy.Config{Family: service.IPv4, MasqueradeBit: 14}

// TestKernelHoldsMany: of many services, more than go into one message, the kernel holds all, and a change of one endpoint is a few
// elements.
func TestKernelHoldsMany(t *testing.T) {
	ns := namespace(t, "ns")
	s := syncerIn(t, ns, many)
	ports := manyPorts(2_000)
	mustSync(t, s, ports)
	if r := mustSync(t, s, oneLess(ports)); r.Full || r.Written[TableName] != 4 {
		t.Errorf("a change of one endpoint: %+v", r) // of the service's fan-out two, its slot, its hairpin
	}
	if names, err := s.Repair(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("repaired what is whole: %v, %v", names, err)
	}
	if r := mustSync(t, syncerIn(t, ns, many), oneLess(ports)); !r.Full || r.Written[TableName] != 0 {
		t.Errorf("a restart: %+v", r)
	}
}

// BenchmarkKernel measures the first sync, a change of one endpoint there and back, and the check whether another process wrote. It also
// measures the comparison with the kernel after another process wrote, and nft loading the same rules from its own listing. For the first
// sync and the changes it also measures bare netlink: the same messages, made before, and nothing else.
func BenchmarkKernel(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmark(b, n) })
	}
}

func benchmark(b *testing.B, n int) {
	all := manyPorts(n)
	ports := allOf(all)
	key := service.Key{Namespace: "ns", Service: all[n/2].Service}
	changed := [][]service.Port{oneLess(all)[n/2 : n/2+1], all[n/2 : n/2+1]}
	full := func(b *testing.B, k Kernel) *Syncer {
		s := NewSyncer(many, NewRules(k))
		if _, err := s.Sync(b.Context(), ports, nil); err != nil {
			b.Fatal(err)
		}
		return s
	}
	change := func(b *testing.B, s *Syncer, i int) {
		ports.Put(key, changed[i%2])
		if r, err := s.Sync(b.Context(), ports, []service.Key{key}); err != nil || r.Full {
			b.Fatal(r, err)
		}
	}
	ns := namespace(b, "ns")
	kept := &recorder{Kernel: nftablesIn(b, ns)}
	s := full(b, kept)
	first := kept.taken()
	var changes [2][]transaction
	for i := range changes {
		change(b, s, i)
		changes[i] = kept.taken()
	}
	b.Run("first", func(b *testing.B) {
		cpu(b, func() { full(b, fresh(b)) })
	})
	b.Run("first-bare", func(b *testing.B) {
		cpu(b, func() { replay(b, fresh(b), first) })
	})
	b.Run("change", func(b *testing.B) {
		each(b, func(i int) { change(b, s, i) })
	})
	for what, undisturbed := range map[string]bool{"look": true, "compare": false} {
		b.Run(what, func(b *testing.B) {
			for b.Loop() {
				if !undisturbed {
					s.generation = 0
				}
				if _, err := s.Repair(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("change-bare", func(b *testing.B) {
		k := nftablesIn(b, ns)
		each(b, func(i int) { replay(b, k, changes[i%2]) })
	})
	b.Run("nft", func(b *testing.B) {
		text := list(b, ns)
		for b.Loop() {
			b.StopTimer()
			other := namespace(b, fmt.Sprint("n", b.N))
			b.StartTimer()
			if err := ruleset.ApplyNFT(b.Context(), other, text); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// cpu measures the CPU time, too, with the kernel's, which other load does not stretch.
func cpu(b *testing.B, f func()) {
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	for b.Loop() {
		f()
	}
	b.ReportMetric((used()-before).Seconds()/float64(b.N), "cpu-s/op")
}

// each measures an even number of changes, each by itself.
func each(b *testing.B, f func(i int)) {
	var took []time.Duration
	cpu(b, func() {
		for range 2 {
			start := time.Now()
			f(len(took))
			took = append(took, time.Since(start))
		}
	})
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(took[len(took)/2]), "median-ms")
	b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
	b.ReportMetric(0, "ns/op") // of two
}

// fresh makes a new namespace outside of the measured time.
func fresh(b *testing.B) Kernel {
	b.StopTimer()
	defer b.StartTimer()
	return nftablesIn(b, namespace(b, fmt.Sprint("n", b.N)))
}

type transaction []netlink.Message

// recorder keeps what is written.
type recorder struct {
	Kernel
	written []transaction
}

func (r *recorder) Commit(ctx context.Context, messages []netlink.Message, generation uint32) error {
	r.written = append(r.written, slices.Clone(messages))
	return r.Kernel.Commit(ctx, messages, generation)
}

func (r *recorder) taken() []transaction {
	t := r.written
	r.written = nil
	return t
}

func replay(b *testing.B, k Kernel, transactions []transaction) {
	for _, t := range transactions {
		if err := k.Commit(b.Context(), t, 0); err != nil {
			b.Fatal(err)
		}
	}
}
