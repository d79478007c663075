package fabric

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/probe"
)

// How often flows are looked at whose ends are to get a reset: when the idle time of one is over, and often enough to know each before (the
// shortest idle time is 4 minutes).
const (
	idleLookMost  = time.Second
	idleLookLeast = time.Minute
)

// idleFlows are the flows that were there at the last look, and when the idle time of each is over if no packet comes.
type idleFlows map[netns.Flow]time.Time

// endIdle sends both ends of a flow whose idle time is over a reset, where a rule of a load balancer wants that, until ctx ends. The kernel
// only forgets the flow: only its ends still know its sequence numbers. So each is asked by an empty segment, answers, and the
// answer, of no flow that is known, gets the reset, by the rule of the table that resets what comes too late.
func (f *Fabric) endIdle(ctx context.Context) {
	var seen idleFlows
	for wait := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		now, over, err := f.lookAtIdle(seen)
		if err == nil {
			err = f.askEnds(over)
			seen = now
		}
		if ctx.Err() == nil {
			f.fault("reset idle flows", err)
		}
		wait = now.nextLook()
	}
}

// nextLook returns how long it is until the idle time of one is over.
func (i idleFlows) nextLook() time.Duration {
	wait := idleLookLeast
	for _, due := range i {
		wait = min(wait, time.Until(due))
	}
	return max(wait, idleLookMost)
}

// lookAtIdle gives the flows there are, and those that there were and whose idle time is over.
func (f *Fabric) lookAtIdle(seen idleFlows) (now idleFlows, over []netns.Flow, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resets := vnet.NewResets(f.network)
	if f.fabric == nil || !resets.Any() {
		return nil, nil, nil
	}
	flows, err := f.fabric.Flows(netns.FlowFilter{Protocol: unix.IPPROTO_TCP})
	if err != nil {
		return nil, nil, err
	}
	now = idleFlows{}
	at := time.Now()
	for _, flow := range flows {
		const established = 3 // TCP_CONNTRACK_ESTABLISHED
		if flow.TCPState == established && resets.Wants(flow.Destination, flow.ReplyDestination.Addr()) {
			left := time.Duration(flow.TimeoutSeconds+1) * time.Second // the kernel rounds down
			flow.Status, flow.TimeoutSeconds = 0, 0
			now[flow] = at.Add(left)
		}
	}
	for flow, due := range seen {
		if _, there := now[flow]; !there && !at.Before(due) {
			over = append(over, flow)
		}
	}
	return now, over, nil
}

// askEnds asks the ends of flows that the kernel has forgotten, each in the name of the other one as it knows it.
func (f *Fabric) askEnds(flows []netns.Flow) error {
	var all []probe.Segment
	for _, flow := range flows {
		all = append(all, probe.Segment{Source: flow.Destination, Destination: flow.Source},
			probe.Segment{Source: flow.ReplyDestination, Destination: flow.ReplySource, Mark: flow.Mark})
	}
	return probe.SendACKs(f.Namespace(), all...)
}
