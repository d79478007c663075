package instances

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/pods/container"
)

// probe starts a container's probes; stop ends them.
func (g *group) probe(ctx context.Context, spec *aci.Container, r *run, c *container.Container) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	unhealthy := func(kind string, err error) {
		if err != nil {
			r.Events = addEvent(r.Events, "Warning", "Unhealthy", kind+" probe failed: "+err.Error())
		}
	}
	if p := spec.Properties.ReadinessProbe; p != nil {
		go g.probing(ctx, c, p, func(err error, decided bool) {
			g.change(func() {
				unhealthy("Readiness", err)
				if decided && r.c == c {
					r.Ready = err == nil
				}
			})
		})
	}
	if p := spec.Properties.LivenessProbe; p != nil {
		go g.probing(ctx, c, p, func(err error, decided bool) {
			g.change(func() { unhealthy("Liveness", err) })
			if !decided || err == nil {
				return
			}
			cancel()
			g.change(func() {
				r.Events = addEvent(r.Events, "Normal", "Killing", "The container failed its liveness probe and is restarted")
			})
			go func() { _ = c.Stop(context.Background(), livenessGrace) }() // its end is seen by who keeps it
		})
	}
	return cancel
}

// livenessGrace is how long a container that is not well has to end.
const livenessGrace = 10 * time.Second

// probing probes until ctx ends. It reports every failure and, as decided, the one or the success by which the probe's thresholds say that
// the container has become well, or has ceased to be.
func (g *group) probing(ctx context.Context, c *container.Container, p *aci.Probe, report func(err error, decided bool)) {
	period := time.Duration(cmp.Or(p.PeriodSeconds, 10)) * time.Second
	limit := time.Duration(cmp.Or(p.TimeoutSeconds, 1)) * time.Second
	timer := time.NewTimer(time.Duration(p.InitialDelaySeconds) * time.Second)
	defer timer.Stop()
	var good, bad int // in a row
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(period)
		err := g.probeOnce(ctx, c, p, limit)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			good, bad = 0, bad+1
			report(err, bad == cmp.Or(p.FailureThreshold, 3))
			continue
		}
		good, bad = good+1, 0
		if good == cmp.Or(p.SuccessThreshold, 1) {
			report(nil, true)
		}
	}
}

func (g *group) probeOnce(ctx context.Context, c *container.Container, p *aci.Probe, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if p.Exec != nil {
		code, err := c.Exec(ctx, container.Exec{Args: p.Exec.Command})
		if err == nil && code != 0 {
			err = fmt.Errorf("exit status %d", code)
		}
		return err
	}
	scheme := cmp.Or(p.HTTPGet.Scheme, "http")
	url := scheme + "://" + g.address().String() + ":" + strconv.Itoa(int(p.HTTPGet.Port)) + cmp.Or(p.HTTPGet.Path, "/")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "kube-probe/"+aci.APIVersion)
	g.mu.Lock()
	space := g.space
	g.mu.Unlock()
	if space == nil {
		return fmt.Errorf("the group has no network")
	}
	// as kubelets do
	transport := &http.Transport{DialContext: space.Dial, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16))
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with status code: %d", resp.StatusCode)
	}
	return nil
}
