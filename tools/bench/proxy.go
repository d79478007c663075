package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// proxies are the settings of the benchmark of service proxies.
var proxies struct {
	services int
	page     string
	minute   time.Duration
}

const (
	proxyLimit   = 90 * time.Second // for a first sync
	proxyTooLong = 5 * time.Second  // a first sync that takes longer is not tried with ten times as many services
	proxyDetail  = 10_000           // services at which everything is measured
	proxyPause   = 2 * time.Second  // longer than the least time between two syncs with iptables, which is a second for both
)

// measurement is what came of one service proxy with so many services. What was not measured is nil or 0.
type measurement struct {
	proxy    string
	services int
	failed   string
	first    time.Duration
	changes  []time.Duration // sorted
	alone    []time.Duration // of changes that no other came before for a while, sorted
	connects []time.Duration // to services, sorted
	direct   []time.Duration // to their endpoints, sorted
	memory   float64         // MB
	slab     float64         // MB
	cpu      time.Duration   // of 1,000 changes
	minute   *streamResult
}

// benchProxy measures kube-proxy and packetwalk-node, each with iptables and with nftables, against one API server, with ever more
// services.
func benchProxy(int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // what was made is removed all the same
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	defer cancel()
	w, err := newProxyWorld(ctx)
	defer w.close()
	if err != nil {
		return err
	}
	r := &proxyResults{load: load()}
	var over []string
	for services := 1; services <= proxies.services; services *= 10 {
		began := time.Now()
		if err := w.fill(ctx, services); err != nil {
			return fmt.Errorf("make %d services: %w", services, err)
		}
		r.filled = append(r.filled, time.Since(began))
		fmt.Printf("  %d services (in %.1f s)\n", services, time.Since(began).Seconds())
		for _, p := range serviceProxies() {
			if slices.Contains(over, p.name) {
				continue
			}
			m := w.measure(ctx, p, services == min(proxyDetail, proxies.services))
			if ctx.Err() != nil {
				return ctx.Err()
			}
			m.print()
			r.add(m)
			if m.failed != "" || m.first > proxyTooLong {
				over = append(over, p.name)
			}
		}
	}
	missed := r.judge(os.Stdout)
	if proxies.page != "" {
		if err := r.writePage(proxies.page); err != nil {
			return err
		}
	}
	fmt.Printf("  %d targets missed\n", missed)
	return nil
}

// measure runs a service proxy on a new node. detail asks for what takes long, too.
func (w *proxyWorld) measure(ctx context.Context, p serviceProxy, detail bool) measurement {
	m := measurement{proxy: p.name, services: w.services}
	err := w.makeNode(ctx)
	if err == nil {
		err = w.measureOn(ctx, p, &m, detail)
	}
	if err == nil {
		full := slab()
		w.removeNode()
		m.slab = max(0, full-slab())
	}
	if err != nil {
		m.failed = err.Error()
	}
	w.removeNode()
	return m
}

func (w *proxyWorld) measureOn(ctx context.Context, p serviceProxy, m *measurement, detail bool) (err error) {
	run, err := w.start(p)
	if err != nil {
		return err
	}
	defer run.stop()
	if m.first, err = run.firstSync(ctx, proxyLimit); err != nil {
		return err
	}
	time.Sleep(2 * time.Second) // it comes to rest
	m.memory = run.resident()
	if m.direct, err = w.connects(300, true); err != nil {
		return fmt.Errorf("connect to endpoints: %w", err)
	}
	if m.connects, err = w.connects(300, false); err != nil {
		return fmt.Errorf("connect to services: %w", err)
	}
	k, err := watchKernel(w.node)
	if err != nil {
		return err
	}
	defer k.close()
	if m.changes, err = w.changes(ctx, k, 200, 50*time.Millisecond, 10*time.Second); err != nil {
		return fmt.Errorf("a change: %w", err)
	}
	if detail {
		time.Sleep(proxyPause)
		if m.alone, err = w.changes(ctx, k, 10, proxyPause, 30*time.Second); err != nil {
			return fmt.Errorf("a change by itself: %w", err)
		}
	}
	if detail && w.services >= 1000 {
		err = w.streams(ctx, k, run, m, p.name == ours)
	}
	m.memory = max(m.memory, run.resident())
	return err
}

// streams measures many changes: what 1,000 of them cost, and if steady, whether it follows 1,000 of them each second.
func (w *proxyWorld) streams(ctx context.Context, k *kernelWatch, run *proxyProcess, m *measurement, steady bool) error {
	s, err := w.stream(ctx, k, run, 1000, 200)
	if err != nil {
		return fmt.Errorf("1,000 changes: %w", err)
	}
	if m.cpu = s.cpu; !steady || proxies.minute == 0 {
		return nil
	}
	s, err = w.stream(ctx, k, run, 1000*int(proxies.minute/time.Second), 1000)
	m.minute = &s
	return err
}
