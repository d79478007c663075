package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"packetwalk.dev/internal/lab/controlplane"
)

// A serviceProxy is one of those that are compared.
type serviceProxy struct {
	name    string
	command []string
}

func serviceProxies() []serviceProxy {
	kubeProxy := []string{"packetwalk-controlplane", "kube-proxy", "--conntrack-max-per-core=0", "--conntrack-min=0",
		"--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"}
	ours := []string{"packetwalk-node", "--ip-families=IPv4"}
	with := func(command []string, mode string) []string {
		return append(slices.Clone(command), "--proxy-mode="+mode)
	}
	return []serviceProxy{
		{"kube-proxy iptables", with(kubeProxy, "iptables")}, {"kube-proxy nftables", with(kubeProxy, "nftables")},
		{"packetwalk iptables", with(ours, "iptables")}, {"packetwalk nftables", with(ours, "nftables")},
	}
}

// proxyProcess is a service proxy that runs on the node.
type proxyProcess struct {
	w       *proxyWorld
	cmd     *exec.Cmd
	began   time.Time
	ended   chan struct{}
	log     string
	metrics *http.Client
}

func (w *proxyWorld) start(p serviceProxy) (*proxyProcess, error) {
	run := &proxyProcess{w: w, ended: make(chan struct{}), log: filepath.Join(w.dir, "proxy.log"), metrics: &http.Client{
		Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: w.node.Dial, DisableKeepAlives: true}}}
	args := append(slices.Clone(p.command[1:]), "--kubeconfig="+w.config.KubeconfigPath(controlplane.NodeAgentUser),
		"--hostname-override="+proxyNode, "--cluster-cidr="+proxyEndpoints.String(), "--metrics-bind-address=127.0.0.1:10249")
	run.cmd = exec.Command(filepath.Join(bin, p.command[0]), args...)
	log, err := os.Create(run.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	run.cmd.Stdout, run.cmd.Stderr = log, log
	run.began = time.Now()
	if err := w.node.Start(run.cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = run.cmd.Wait()
		close(run.ended)
	}()
	return run, nil
}

// stop ends the process and its children, which are of its namespace.
func (p *proxyProcess) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// firstSync waits until all rules are there, and gives the time from the process's start, by the metric that both have.
func (p *proxyProcess) firstSync(ctx context.Context, limit time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		if at := p.synced(ctx); !at.IsZero() {
			return at.Sub(p.began), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("no first sync in %v", limit)
		case <-p.ended:
			text, _ := os.ReadFile(p.log)
			return 0, fmt.Errorf("it ended:\n%s", text[max(0, len(text)-2000):])
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (p *proxyProcess) synced(ctx context.Context) time.Time {
	const metric = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10249/metrics", nil)
	if err != nil {
		return time.Time{}
	}
	resp, err := p.metrics.Do(req)
	if err != nil {
		return time.Time{}
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(io.LimitReader(resp.Body, 16<<20))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if !strings.HasPrefix(name, metric) || strings.Contains(name, "IPv6") {
			continue
		}
		if seconds, err := strconv.ParseFloat(value, 64); err == nil && seconds > 0 {
			return time.UnixMicro(int64(seconds * 1e6))
		}
	}
	return time.Time{}
}

// resident returns the process's memory in MB.
func (p *proxyProcess) resident() float64 {
	m, _ := memoryOf(fmt.Sprintf("/proc/%d", p.cmd.Process.Pid))
	return m.rss
}

// connects returns how long it takes to connect, each time to a service, or past them to an endpoint.
func (w *proxyWorld) connects(n int, direct bool) ([]time.Duration, error) {
	var took []time.Duration
	dialer := net.Dialer{Timeout: 5 * time.Second, FallbackDelay: -1}
	err := w.node.Do(func() error {
		for range n {
			to := netip.AddrPortFrom(clusterIP(rand.IntN(w.services)), 80)
			if direct {
				to = netip.AddrPortFrom(endpoint(rand.IntN(w.services), 0), proxyPort)
			}
			began := time.Now()
			c, err := dialer.Dial("tcp", to.String())
			if err != nil {
				return err
			}
			took = append(took, time.Since(began))
			_ = c.Close()
		}
		return nil
	})
	slices.Sort(took)
	return took, err
}

// A proxyChange is a change of a service's endpoints, that brings one which no service had.
type proxyChange struct {
	w       *proxyWorld
	k       *kernelWatch
	service int
	grows   bool // by one, instead of one in place of another
}

var errLate = errors.New("not in the kernel in time")

// do makes the change, and gives the time from the API server's answer until the kernel has it. What the kernel has sooner than the answer
// is here took no time.
func (c *proxyChange) do(ctx context.Context, limit time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	endpoints := endpointsOf(c.service)
	if c.grows {
		endpoints = append(endpoints, netip.Addr{})
	}
	added := c.w.newAddress()
	endpoints[len(endpoints)-1] = added
	written := c.k.expect(added)
	if err := c.w.update(ctx, c.service, endpoints); err != nil {
		return 0, err
	}
	answered := time.Now()
	select {
	case at := <-written:
		return max(0, at.Sub(answered)), nil
	case <-ctx.Done():
		return 0, errLate
	}
}

// changes makes changes one after the other with pauses, as many as the time is enough for, and gives how long each took, sorted.
func (w *proxyWorld) changes(ctx context.Context, k *kernelWatch, most int, pause, budget time.Duration) (took []time.Duration, err error) {
	end := time.Now().Add(budget)
	for i := 0; i < most && (i < 3 || time.Now().Before(end)); i++ {
		c := proxyChange{w, k, rand.IntN(w.services), i%2 == 1}
		d, err := c.do(ctx, 30*time.Second)
		if err != nil {
			return nil, err
		}
		took = append(took, d)
		time.Sleep(pause)
	}
	slices.Sort(took)
	return took, nil
}

// streamResult is what came of a steady stream of changes.
type streamResult struct {
	changes, lost int
	second        float64 // how many a second the API server took
	lags          []time.Duration
	cpu           time.Duration // of the service proxy
	took          time.Duration
}

// stream makes so many changes, each of another service as far as there are enough, at most so many a second, and waits until all are in
// the kernel, or have been late for 30 seconds.
func (w *proxyWorld) stream(ctx context.Context, k *kernelWatch, p *proxyProcess, changes, second int) (s streamResult, err error) {
	s.changes = changes
	work := make(chan int) // services
	var mu sync.Mutex
	var all sync.WaitGroup
	cpu, began := cpuTime(p.cmd.Process.Pid), time.Now()
	services := rand.Perm(w.services)
	for range proxyWorkers {
		all.Go(func() {
			for service := range work {
				added := w.newAddress()
				endpoints := endpointsOf(service)
				endpoints[len(endpoints)-1] = added
				written := k.expect(added)
				failed := w.update(ctx, service, endpoints)
				answered := time.Now()
				mu.Lock()
				if failed != nil {
					err = failed
				}
				mu.Unlock()
				all.Go(func() {
					select {
					case at := <-written:
						mu.Lock()
						defer mu.Unlock()
						s.lags = append(s.lags, max(0, at.Sub(answered)))
					case <-time.After(30 * time.Second):
					case <-ctx.Done():
					}
				})
			}
		})
	}
	for i := range changes {
		if d := time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(second))); d > 0 {
			time.Sleep(d)
		}
		if ctx.Err() != nil {
			break
		}
		work <- services[i%len(services)]
	}
	close(work)
	s.took = time.Since(began)
	all.Wait()
	s.second = float64(changes) / s.took.Seconds()
	s.cpu = cpuTime(p.cmd.Process.Pid) - cpu
	s.lost = changes - len(s.lags)
	slices.Sort(s.lags)
	return s, err
}
