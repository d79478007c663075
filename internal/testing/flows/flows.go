// Package flows sends the first packets of real flows, and reads out of conntrack where they went, for tests of rules on the real kernel.
// Only tests import it.
package flows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/packet"
)

// Way is where a flow went: who is to answer, and to which address, which is another than the sender's if it was translated.
type Way struct {
	Answers netip.AddrPort
	To      netip.Addr
}

// String returns "10.1.0.1:80 answers 10.13.0.4".
func (w Way) String() string { return fmt.Sprintf("%s answers %s", w.Answers, w.To) }

// basePort is the source port of the first flow.
const basePort = 2000

// Namespace is a network namespace on whose threads functions run.
type Namespace interface{ Do(func() error) error }

// Send sends the first packet of so many flows to each destination, out of a namespace and from an address there, each flow from a port of
// its own. That packets are refused or dropped on their way is no error.
func Send(ns Namespace, protocol packet.Protocol, from netip.Addr, to []netip.AddrPort, each int) error {
	return ns.Do(func() error {
		for i, destination := range to {
			for j := range each {
				if err := first(protocol, netip.AddrPortFrom(from, uint16(basePort+i*each+j)), destination); err != nil {
					return fmt.Errorf("%s from %v to %v: %w", protocol, from, destination, err)
				}
			}
		}
		return nil
	})
}

// first sends a flow's first packet.
func first(protocol packet.Protocol, from, to netip.AddrPort) error {
	kind, number, port := unix.SOCK_DGRAM, 0, from.Port()
	switch protocol {
	case packet.TCP:
		kind = unix.SOCK_STREAM
	case packet.SCTP:
		kind, number, port = unix.SOCK_RAW, unix.IPPROTO_SCTP, 0
	}
	domain := unix.AF_INET
	if from.Addr().Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, number)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, address(netip.AddrPortFrom(from.Addr(), port))); err != nil {
		return err
	}
	destination := to
	if protocol == packet.SCTP && to.Addr().Is6() { // a raw socket of IPv6 takes the port for a protocol
		destination = netip.AddrPortFrom(to.Addr(), 0)
	}
	err = unix.Connect(fd, address(destination))
	switch {
	case err == nil && protocol == packet.UDP:
		_, err = unix.Write(fd, []byte("x"))
	case err == nil && protocol == packet.SCTP:
		_, err = unix.Write(fd, sctpInit(from.Port(), to.Port()))
	}
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

func address(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// sctpInit returns a packet of SCTP with the chunk INIT (RFC 9260, 3.3.2).
func sctpInit(from, to uint16) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)                                            // tag, checksum
	b = append(b, 1, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1) // INIT: tag, window, streams, first number
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// Tracked counts the ways of what Send sent, as a namespace's conntrack has them, by destination. What was refused or dropped before it was
// confirmed is not among them.
func Tracked(ns Namespace, protocol packet.Protocol, from netip.Addr, each, destinations int) ([]map[Way]int, error) {
	ways := make([]map[Way]int, destinations)
	for i := range ways {
		ways[i] = map[Way]int{}
	}
	err := ns.Do(func() error {
		c, err := conntrack.Dial(nil)
		if err != nil {
			return err
		}
		defer c.Close()
		all, err := c.Dump(nil)
		for _, f := range all {
			orig, reply := f.TupleOrig, f.TupleReply
			port := int(orig.Proto.SourcePort) - basePort
			if packet.Protocol(orig.Proto.Protocol) != protocol || orig.IP.SourceAddress != from || port < 0 || port/each >= destinations {
				continue
			}
			ways[port/each][Way{netip.AddrPortFrom(reply.IP.SourceAddress, reply.Proto.SourcePort), reply.IP.DestinationAddress}]++
		}
		return err
	})
	return ways, err
}

// Forget makes a namespace's conntrack forget all flows.
func Forget(ns Namespace) error {
	return ns.Do(func() error {
		c, err := conntrack.Dial(nil)
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Flush()
	})
}
