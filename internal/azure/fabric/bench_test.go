package fabric_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
)

// BenchmarkUpdate is one Service added or deleted in a network of 20 nodes with 31 addresses each.
func BenchmarkUpdate(b *testing.B) {
	w := newWorld(b, 20, 31)
	for i := 0; b.Loop(); i++ {
		w.update(func(n *vnet.Network) error {
			if i%2 == 0 {
				return addService(n)
			}
			lb, _ := n.LoadBalancer("kubernetes")
			lb.Frontends, lb.Rules, lb.Probes = nil, nil, nil
			return nil
		})
	}
}

// BenchmarkAttach is one machine's NIC wired and unwired among 20 nodes with 31 addresses each.
func BenchmarkAttach(b *testing.B) {
	w := newWorld(b, 20, 31)
	for b.Loop() {
		if err := w.fabric.DetachNIC("testvm-nic"); err != nil {
			b.Fatal(err)
		}
		if err := w.fabric.AttachNIC("testvm-nic", w.ns["testvm"]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkThroughput sends TCP between two machines, through the fabric and through a namespace that only forwards, in turn
// and in one run, and reports both and the ratio. It needs iperf3.
func BenchmarkThroughput(b *testing.B) {
	w := newWorld(b, 20, 31)
	w.update(addService)
	plain := newPlain(b)
	serve(b, w.ns["node1"])
	serve(b, plain.right)
	var through, forward, ratio float64
	rounds := 0
	for b.Loop() {
		f := iperf(b, w.ns["node0"], w.address("node1"))
		p := iperf(b, plain.left, "10.9.2.2")
		through, forward, ratio, rounds = through+f, forward+p, ratio+f/p, rounds+1
	}
	b.ReportMetric(through/float64(rounds), "fabric-Gbit/s")
	b.ReportMetric(forward/float64(rounds), "plain-Gbit/s")
	b.ReportMetric(100*ratio/float64(rounds), "%-of-plain")
}

// plainNetwork is two namespaces joined by a third one that forwards and does nothing else.
type plainNetwork struct{ left, right *netns.Namespace }

func newPlain(b *testing.B) plainNetwork {
	b.Helper()
	dir := b.TempDir()
	make := func(name string) *netns.Namespace {
		ns, err := netns.Create(dir + "/" + name)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { ns.Remove() })
		return ns
	}
	left, middle, right := make("left"), make("middle"), make("right")
	for i, ns := range []*netns.Namespace{left, right} {
		near := fmt.Sprintf("eth%d", i)
		if err := netns.EnsureVeth(netns.LinkEnd{Namespace: middle, Name: near}, netns.LinkEnd{Namespace: ns, Name: "eth0"},
			vnet.MTU); err != nil {
			b.Fatal(err)
		}
		subnet := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(i + 1), last}) }
		for _, a := range []struct {
			ns *netns.Namespace
			s  netns.State
		}{
			{middle, netns.State{Sysctls: []netns.Sysctl{{Key: "net/ipv4/ip_forward", Value: "1"}},
				Addresses: []netns.Address{{Link: near, Prefix: netip.PrefixFrom(subnet(1), 24)}}}},
			{ns, netns.State{
				Addresses: []netns.Address{{Link: "eth0", Prefix: netip.PrefixFrom(subnet(2), 24)}},
				Routes:    []netns.Route{{Destination: netip.MustParsePrefix("0.0.0.0/0"), Gateway: subnet(1), Link: "eth0"}},
			}},
		} {
			if err := a.ns.Apply(a.s); err != nil {
				b.Fatal(err)
			}
		}
	}
	return plainNetwork{left, right}
}

func serve(b *testing.B, ns *netns.Namespace) {
	b.Helper()
	cmd := exec.Command("iperf3", "-s")
	if err := ns.Start(cmd); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	time.Sleep(200 * time.Millisecond)
}

// iperf returns Gbit/s.
func iperf(b *testing.B, from *netns.Namespace, to string) float64 {
	b.Helper()
	var out strings.Builder
	cmd := exec.Command("iperf3", "-J", "-t", "2", "-c", to)
	cmd.Stdout = &out
	if err := from.Do(cmd.Run); err != nil {
		b.Fatal(err, out.String())
	}
	var r struct {
		End struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
		b.Fatal(err)
	}
	return r.End.Received.Bits / 1e9
}
