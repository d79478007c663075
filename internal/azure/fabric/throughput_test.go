package fabric_test

import (
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// BenchmarkGateway measures what a NAT gateway passes, as a part of what the same namespaces pass without any rule: of-plain. Both are
// measured by turns.
func BenchmarkGateway(b *testing.B) {
	w := newWorld(b, 1, 1)
	w.update(standard)
	w.update(addGateway)
	l, err := w.ns["server"].Listen(b.Context(), "tcp4", "0.0.0.0:9")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	received := make(chan int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n, _ := io.Copy(io.Discard, c)
			c.Close()
			received <- n
		}
	}()
	ns := w.fabric.Namespace()
	rules := run(b, ns, "nft", "list", "table", "ip", "azure") + run(b, ns, "nft", "list", "table", "ip", "azure-idle")
	run(b, w.fabric.Internet(), "ip", "route", "add", "10.13.0.0/16", "via", "203.0.113.254", "dev", "fabric", "onlink")
	send := func() float64 {
		c, err := w.dial("node0", "", server+":9")
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		block := make([]byte, 256<<10)
		for time.Since(start) < 300*time.Millisecond {
			if _, err := c.Write(block); err != nil {
				b.Fatal(err)
			}
		}
		c.Close()
		n := <-received
		return float64(n) / time.Since(start).Seconds()
	}
	var plain, gateway []float64
	for b.Loop() {
		run(b, ns, "nft", "delete table ip azure; delete table ip azure-idle")
		run(b, ns, "iptables", "-t", "mangle", "-F", "PREROUTING")
		plain = append(plain, send())
		if err := w.restore(rules); err != nil {
			b.Fatal(err)
		}
		run(b, ns, "iptables", "-t", "mangle", "-A", "PREROUTING", "-j", "TTL", "--ttl-inc", "1")
		gateway = append(gateway, send())
	}
	median := func(list []float64) float64 { slices.Sort(list); return list[len(list)/2] }
	b.ReportMetric(median(plain)/1e9, "plain-GB/s")
	b.ReportMetric(median(gateway)/1e9, "gateway-GB/s")
	b.ReportMetric(median(gateway)/median(plain), "of-plain")
}

// restore loads a rule set into the fabric.
func (w *world) restore(rules string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	return w.fabric.Namespace().Do(cmd.Run)
}
