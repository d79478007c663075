package verify

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"github.com/ti-mo/netfilter"
	netlinkroute "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
)

// oddsPayload is what the datagrams of an experiment carry, in bytes.
const oddsPayload = 8

// datagramLength returns the length of an experiment's datagram.
func datagramLength(p *packet.Packet) int {
	if p.IsIPv6() {
		return 40 + 8 + oddsPayload
	}
	return 20 + 8 + oddsPayload
}

// Flows are sent in bursts: few at first, so that neighbours are asked for before many packets wait for the answers.
const (
	firstBurst = 20
	burst      = 100
	pause      = 60 * time.Millisecond // after the first, and again while a neighbour is asked for
	stillness  = 300 * time.Millisecond
	busy       = 2 * time.Second  // where some are missing: a busy machine's ksoftirqd may not have come to them
	busier     = 20 * time.Second // where none should be missing
)

// asking reports whether a neighbour is asked for anywhere in the world.
func (b *builtWorld) asking() (bool, error) {
	for _, ns := range b.spaces {
		h, err := ns.Handle()
		if err != nil {
			return false, err
		}
		list, err := h.NeighList(0, netlinkroute.FAMILY_ALL)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(list, func(n netlinkroute.Neigh) bool { return n.State&netlinkroute.NUD_INCOMPLETE != 0 }) {
			return true, nil
		}
	}
	return false, nil
}

// flows sends the first packets of many flows from one host, and returns the connections that another one makes meanwhile. Where some are
// missing it waits for them until none has come for patience.
func (b *builtWorld) flows(ctx context.Context, from string, p *packet.Packet, at string, patience time.Duration) ([]netns.Flow, error) {
	events, done, err := newFlows(b.spaces[at])
	if err != nil {
		return nil, err
	}
	defer done()
	var seen []netns.Flow
	collect := func(still time.Duration) error {
		for {
			select {
			case e, ok := <-events:
				if !ok {
					return errors.New("connections came faster than they were read")
				}
				seen = append(seen, e)
			case <-time.After(still):
				return ctx.Err()
			}
		}
	}
	for sent := 0; sent < oddsFlows; {
		n := min(burst, oddsFlows-sent)
		if sent == 0 {
			n = firstBurst
		}
		if err := sendFlows(b.spaces[from], p, oddsPorts+sent, n); err != nil {
			return nil, err
		}
		still := time.Millisecond
		if sent += n; sent == firstBurst {
			still = pause
		}
		for again := true; again; {
			if err := collect(still); err != nil {
				return nil, err
			}
			if again = sent == firstBurst; again { // the kernel asks three times, a second apart
				if again, err = b.asking(); err != nil {
					return nil, err
				}
			}
		}
	}
	if err := collect(stillness); err != nil || len(seen) >= oddsFlows {
		return seen, err
	}
	return seen, collect(patience)
}

// newFlows reads the connections that a namespace makes until done is called; the channel is closed early where there are too many.
func newFlows(ns *netns.Namespace) (events <-chan netns.Flow, done func(), err error) {
	file, err := os.Open(ns.Path())
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	c, err := conntrack.Dial(&netlink.Config{NetNS: int(file.Fd())})
	if err != nil {
		return nil, nil, err
	}
	if err := c.SetReadBuffer(16 << 20); err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	raw, out := make(chan conntrack.Event, 4*oddsFlows), make(chan netns.Flow, 4*oddsFlows)
	errs, err := c.Listen(raw, 1, []netfilter.NetlinkGroup{netfilter.GroupCTNew})
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	stop := make(chan struct{})
	go func() {
		defer close(out)
		for {
			select {
			case e := <-raw:
				out <- netns.FlowOf(*e.Flow)
			case <-errs: //nolint:errcheck // the channel's end says so
				return
			case <-stop:
				return
			}
		}
	}()
	return out, func() { close(stop); _ = c.Close() }, nil
}

// sendFlows sends the first packets of flows that differ in their source ports: datagrams, or SYNs of connections that are given up at
// once.
func sendFlows(ns *netns.Namespace, p *packet.Packet, port, count int) error {
	kind, family := unix.SOCK_DGRAM, unix.AF_INET
	if p.Protocol == packet.TCP {
		kind = unix.SOCK_STREAM
	}
	if p.IsIPv6() {
		family = unix.AF_INET6
	}
	source := p.Source
	if !source.IsValid() {
		source = netip.IPv4Unspecified()
		if p.IsIPv6() {
			source = netip.IPv6Unspecified()
		}
	}
	return ns.Do(func() error {
		for i := range count {
			fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			err = unix.Bind(fd, sockaddr(source, uint16(port+i)))
			if err == nil { // what the kernel says of a packet that it does not let out is for the comparison to see
				_ = unix.Connect(fd, sockaddr(p.Destination, p.DestinationPort.Number))
			}
			if err == nil && kind == unix.SOCK_DGRAM {
				_, _ = unix.Write(fd, make([]byte, oddsPayload))
			}
			if err := errors.Join(err, unix.Close(fd)); err != nil {
				return fmt.Errorf("flow from port %d: %w", port+i, err)
			}
		}
		return nil
	})
}

func sockaddr(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: int(port)}
}
