package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
)

// benchCapture measures captures: of a node with many services in the kernel, and of a cluster that is simulated.
func benchCapture(n int) error {
	if err := captureOfServices(n); err != nil {
		return err
	}
	return captureOfCluster(n)
}

// captureOfServices takes one node with services of the kinds that there are.
func captureOfServices(n int) error {
	ctx := context.Background()
	services := proxies.services
	for what, apply := range map[string]func(ns *netns.Namespace) error{
		"iptables": func(ns *netns.Namespace) error {
			return ruleset.RestoreIPTables(ctx, ns, kubeProxyRules(services), false)
		},
		"nftables": func(ns *netns.Namespace) error { return ruleset.ApplyNFT(ctx, ns, kubeProxyTable(services)) },
	} {
		if err := captureOf(ctx, fmt.Sprintf("node with %d services, %s", services, what), n, apply); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

func captureOf(ctx context.Context, what string, n int, apply func(*netns.Namespace) error) (err error) {
	dir, err := os.MkdirTemp("", "bench-capture-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ns, err := netns.Create(filepath.Join(dir, "ns"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Remove()) }()
	if err := apply(ns); err != nil {
		return err
	}
	origin := dump.Origin(ctx, map[string]string{"node/a": ns.Path()}, "")
	var t table
	for range n {
		begin := time.Now()
		out := &counter{}
		if _, err := capture.Take(ctx, origin, out, capture.Head{Taken: begin}); err != nil {
			return err
		}
		t.add(what+": capture", "s", time.Since(begin).Seconds())
		t.add(what+": file", "MB", float64(out.n)/1e6)
	}
	raw, err := origin.Fetch("node/a")
	if err != nil {
		return err
	}
	for _, file := range []string{"nft.json", "iptables-save.txt"} {
		t.add(what+": "+file, "MB", float64(len(raw.Outputs[file].Data))/1e6)
	}
	t.print()
	return nil
}

// counter counts bytes.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// clusterServices is how many services a simulated cluster has.
const clusterServices = 100

// captureOfCluster writes captures of simulated clusters of 10, 100, … nodes up to nodes.count, and walks through each from a pod to one
// on another node, and to a service.
func captureOfCluster(n int) error {
	for _, size := range []int{10, 100, 1000, 5000} {
		if size > max(nodes.count, 10) {
			break
		}
		if err := captureOfSize(n, size, max(1, nodes.pods/nodes.count)); err != nil {
			return err
		}
	}
	return nil
}

func captureOfSize(n, size, pods int) error {
	s, err := newSimulation(size, pods, clusterServices)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("", "bench-capture-*.pwcap.tar.gz")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	what := fmt.Sprintf("%d nodes, %d pods: ", size, size*pods)
	var t table
	begin := time.Now()
	peak := watchHeap()
	if _, err := capture.Take(context.Background(), s.origin(), f, capture.Head{Packetwalk: "simulated", Taken: begin}); err != nil {
		return err
	}
	t.add(what+"written", "s", time.Since(begin).Seconds())
	t.add(what+"heap while it is written", "MB", peak())
	length, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	t.add(what+"file", "MB", float64(length)/1e6)
	for range n {
		begin := time.Now()
		if _, err := capture.Read(f, length); err != nil {
			return err
		}
		t.add(what+"opened", "s", time.Since(begin).Seconds())
		for to, end := range map[string]string{
			"a pod of another node": fmt.Sprintf("%s:8080", podAddr(size-1, pods-1)), "a service": fmt.Sprintf("%s:80", serviceAddr(1)),
		} {
			seconds, resident, err := walked(f.Name(), "pod/shop/"+podName(0, 0), end)
			if err != nil {
				return err
			}
			t.add(what+"walk to "+to, "s", seconds)
			t.add(what+"memory of that", "MB", resident)
		}
	}
	slices.SortStableFunc(t.series, func(a, b *series) int { return strings.Compare(a.unit, b.unit) })
	t.print()
	return nil
}

// walked runs one walk as people type it: the seconds that it takes, and the most memory that was resident, in MB.
func walked(file, from, to string) (seconds, resident float64, err error) {
	cmd := exec.Command(filepath.Join(bin, "packetwalk"), "walk", "--snapshot", file, "--from", from, "--to", to)
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w\n%s", cmd, err, indent(string(out)))
	}
	if !strings.Contains(string(out), "delivered") {
		return 0, 0, fmt.Errorf("%s: it does not arrive\n%s", cmd, indent(string(out)))
	}
	usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return time.Since(begin).Seconds(), float64(usage.Maxrss) / 1000, nil
}

// watchHeap looks at this program's heap until its result is called, which gives the most there was, in MB.
func watchHeap() func() float64 {
	stop, most := make(chan struct{}), make(chan float64)
	go func() {
		peak := 0.0
		for {
			select {
			case <-stop:
				most <- peak
				return
			case <-time.After(100 * time.Millisecond):
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak = max(peak, float64(m.HeapInuse)/1e6)
			}
		}
	}()
	return func() float64 { close(stop); return <-most }
}
