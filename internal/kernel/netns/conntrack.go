package netns

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/sysctl"
	"packetwalk.dev/internal/model/desired"
	"packetwalk.dev/internal/model/witness"
)

// Flow is one connection that the kernel tracks.
type Flow = witness.Flow

// FlowFilter chooses flows.
type FlowFilter = desired.FlowFilter

func matches(f FlowFilter, flow Flow) bool {
	return (f.Protocol == 0 || f.Protocol == flow.Protocol) &&
		(!f.Source.IsValid() || f.Source.Contains(flow.Source.Addr())) &&
		(!f.Destination.IsValid() || f.Destination.Contains(flow.Destination.Addr())) &&
		(f.SourcePort == 0 || f.SourcePort == flow.Source.Port()) &&
		(f.DestinationPort == 0 || f.DestinationPort == flow.Destination.Port()) &&
		(f.Mask == 0 || flow.Mark&f.Mask == f.Mark)
}

// Flows lists the tracked connections of the namespace that one of the filters chooses, or all without a filter.
func (n *Namespace) Flows(filters ...FlowFilter) ([]Flow, error) {
	var flows []Flow
	err := n.eachFlow(filters, func(_ *conntrack.Conn, _ conntrack.Flow, f Flow) error {
		flows = append(flows, f)
		return nil
	})
	return flows, err
}

// DeleteFlows makes the kernel forget the tracked connections that one of the filters chooses and returns how many there were.
// Without a filter it deletes nothing.
func (n *Namespace) DeleteFlows(filters ...FlowFilter) (int, error) {
	if len(filters) == 0 {
		return 0, nil
	}
	count := 0
	err := n.eachFlow(filters, func(c *conntrack.Conn, raw conntrack.Flow, f Flow) error {
		err := c.Delete(raw)
		if errors.Is(err, unix.ENOENT) {
			return nil // it ended by itself
		}
		if err != nil {
			return fmt.Errorf("delete flow %s > %s in %s: %w", f.Source, f.Destination, n.path, err)
		}
		count++
		return nil
	})
	return count, err
}

// KeepEnded makes the kernel keep those flows of TCP that have ended and that one of the filters chooses until their time is over: else,
// where free ports are hard to find, a new flow gets the port of one (nf_nat_may_kill, net/netfilter/nf_nat_core.c, spares
// IPS_FIXED_TIMEOUT).
func (n *Namespace) KeepEnded(filters ...FlowFilter) error {
	const timeWait = 7 // TCP_CONNTRACK_TIME_WAIT; behind it is only CLOSE
	if len(filters) == 0 {
		return nil
	}
	return n.eachFlow(filters, func(c *conntrack.Conn, raw conntrack.Flow, f Flow) error {
		if f.TCPState < timeWait || raw.Status.FixedTimeout() {
			return nil
		}
		kept := conntrack.Flow{TupleOrig: raw.TupleOrig, Status: conntrack.Status{Value: raw.Status.Value | conntrack.StatusFixedTimeout}}
		if err := c.Update(kept); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) { // it is gone, or going
			return fmt.Errorf("keep flow %s > %s in %s: %w", f.Source, f.Destination, n.path, err)
		}
		return nil
	})
}

// CountFlows tells how many connections the namespace tracks, at once, where listing them takes the kernel some 10 ms: it looks through the
// one table of all namespaces.
func (n *Namespace) CountFlows() (int, error) {
	var count int
	err := n.Do(func() (err error) {
		count, err = sysctl.ReadInt("net/netfilter/nf_conntrack_count")
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("count connections of %s: %w", n.path, err)
	}
	return count, nil
}

// TracksNothing tells that the namespace certainly has no connections.
func (n *Namespace) TracksNothing() bool {
	count, err := n.CountFlows()
	return err == nil && count == 0
}

func (n *Namespace) eachFlow(filters []FlowFilter, do func(*conntrack.Conn, conntrack.Flow, Flow) error) error {
	if n.TracksNothing() {
		return nil
	}
	c, err := conntrack.Dial(&netlink.Config{NetNS: int(n.file.Fd())})
	if err != nil {
		return fmt.Errorf("open conntrack in %s: %w", n.path, err)
	}
	defer c.Close()
	all, err := c.Dump(nil)
	if err != nil {
		return fmt.Errorf("dump conntrack of %s: %w", n.path, err)
	}
	for _, raw := range all {
		flow := FlowOf(raw)
		chosen := len(filters) == 0
		for _, f := range filters {
			chosen = chosen || matches(f, flow)
		}
		if !chosen {
			continue
		}
		if err := do(c, raw, flow); err != nil {
			return err
		}
	}
	return nil
}

// FlowOf returns a flow as the conntrack library has it.
func FlowOf(f conntrack.Flow) Flow {
	src, dst := tupleEnds(f.TupleOrig)
	replySrc, replyDst := tupleEnds(f.TupleReply)
	flow := Flow{
		Protocol: f.TupleOrig.Proto.Protocol, Source: src, Destination: dst, ReplySource: replySrc, ReplyDestination: replyDst,
		Mark: f.Mark, Status: uint32(f.Status.Value), TimeoutSeconds: f.Timeout,
	}
	if f.ProtoInfo.TCP != nil {
		flow.TCPState = f.ProtoInfo.TCP.State
	}
	return flow
}

// DroppedFlows counts the new flows that the namespace's conntrack could not take, because no free port was found for them or something
// else was there already (insert_failed of conntrack -S).
func (n *Namespace) DroppedFlows() (uint64, error) {
	c, err := conntrack.Dial(&netlink.Config{NetNS: int(n.file.Fd())})
	if err != nil {
		return 0, fmt.Errorf("open conntrack in %s: %w", n.path, err)
	}
	defer c.Close()
	cpus, err := c.Stats()
	if err != nil {
		return 0, fmt.Errorf("conntrack statistics of %s: %w", n.path, err)
	}
	var sum uint64
	for _, cpu := range cpus {
		sum += uint64(cpu.InsertFailed)
	}
	return sum, nil
}

func tupleEnds(t conntrack.Tuple) (src, dst netip.AddrPort) {
	return netip.AddrPortFrom(t.IP.SourceAddress, t.Proto.SourcePort), netip.AddrPortFrom(t.IP.DestinationAddress, t.Proto.DestinationPort)
}
