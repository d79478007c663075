package fabric

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
)

// A VM's agent asks the wire server for its goal state every 6 s (WALinuxAgent, azurelinuxagent/common/conf.py,
// Extensions.GoalStatePeriod).
const (
	goalStatePeriod = 6 * time.Second
	goalStateLimit  = 5 * time.Second // of one question
)

// startAgent has a machine's agent ask from its namespace, until ctx ends or its NIC goes. Held: mu.
func (f *Fabric) startAgent(nic string, machine *netns.Namespace) error {
	if f.agents[nic] != nil {
		return nil
	}
	ns, err := netns.Open(machine.Path()) // the caller may close its own
	if err != nil {
		return fmt.Errorf("agent of %s: %w", nic, err)
	}
	ctx, stop := context.WithCancel(f.life)
	f.agents[nic] = stop
	f.done.Go(func() {
		defer ns.Close()
		askGoalState(ctx, ns)
	})
	return nil
}

// stopAgent ends a machine's agent, if it has one. Held: mu.
func (f *Fabric) stopAgent(nic string) {
	if stop := f.agents[nic]; stop != nil {
		stop()
		delete(f.agents, nic)
	}
}

// askGoalState asks until ctx ends. What the answer says changes nothing, and no answer is no fault: a security group may forbid it.
func askGoalState(ctx context.Context, ns *netns.Namespace) {
	client := &http.Client{Timeout: goalStateLimit, Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}}
	// Machines that start together do not ask together.
	for wait := rand.N(goalStatePeriod); ; wait = goalStatePeriod {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+vnet.ProbeSource.String()+"/machine/?comp=goalstate", nil)
		if err != nil {
			return
		}
		r.Header.Set("x-ms-version", "2012-11-30")
		r.Header.Set("User-Agent", "WALinuxAgent/2.11.1.4")
		if resp, err := client.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16))
			_ = resp.Body.Close()
		}
	}
}
