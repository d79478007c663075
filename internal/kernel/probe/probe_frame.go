package probe

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"

	"packetwalk.dev/internal/model/witness"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
)

// PrepareFrame makes a probe that is sent past the namespace's own IP stack, as a frame out of a link. Such a packet is one that no socket
// can send, for whichever host is at the other end. It is a TCP segment, a UDP datagram, an ICMP echo or an SCTP INIT. The probe takes from
// p the whole tuple, TTL, TOS, the TCP flags (a SYN without any) and the link-layer addresses. With More it is the first fragment of an
// IPv4 packet. The probe waits for no answer: its result is always TimedOut.
func PrepareFrame(n *netns.Namespace, link string, p packet.Packet) (*Probe, error) {
	fail := func(err error) (*Probe, error) {
		return nil, fmt.Errorf("prepare %s out of %s in %s: %w", p.Tuple, link, n.Path(), err)
	}
	if !p.Protocol.HasPorts() && echoRequest[p.Protocol] == 0 || !p.Source.IsValid() || p.Source.Is4() != p.Destination.Is4() {
		return fail(witness.ErrUnsendable)
	}
	h, err := n.Handle()
	if err != nil {
		return fail(err)
	}
	l, err := h.LinkByName(link)
	if err != nil {
		return fail(err)
	}
	if query, ok := echoRequest[p.Protocol]; ok {
		p.Type, p.DestinationPort = query, packet.Port{}
	}
	probe := &Probe{tuple: p.Tuple, packet: p, link: l.Attrs().Index, Payload: make([]byte, 32)}
	_, _ = rand.Read(probe.Payload) // never fails (crypto/rand)
	err = n.Do(func() (err error) {
		probe.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return fail(err)
	}
	// The frame is not the namespace's: no chain at the link sees it, and no capture.
	if err := unix.SetsockoptInt(probe.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return fail(errors.Join(os.NewSyscallError("setsockopt", err), probe.Close()))
	}
	return probe, nil
}

// sendFrame sends the frame and lets the patience pass.
func (p *Probe) sendFrame(ctx, patience context.Context) (witness.Result, error) {
	if err := unix.Sendto(p.fd, p.frame(), 0, &unix.SockaddrLinklayer{Ifindex: p.link}); err != nil {
		return witness.Result{}, os.NewSyscallError("send", err)
	}
	<-patience.Done()
	return witness.Result{Tuple: p.tuple, Answer: witness.TimedOut}, ctx.Err()
}

// frame returns the Ethernet frame.
func (p *Probe) frame() []byte {
	q := &p.packet
	transport := p.transport()
	b := append(append(append([]byte(nil), q.Frame.Destination[:]...), q.Frame.Source[:]...), 0x08, 0)
	if q.IsIPv6() {
		b[12], b[13] = 0x86, 0xdd
		b = append(b, 6<<4|q.TOS>>4, q.TOS<<4, 0, 0)
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(transport))), byte(q.Protocol), q.TTL)
		return append(append(append(b, q.Source.AsSlice()...), q.Destination.AsSlice()...), transport...)
	}
	const length = 20
	header := append([]byte{0x45, q.TOS}, binary.BigEndian.AppendUint16(nil, uint16(length+len(transport)))...)
	fragment := byte(0x40) // not to be fragmented
	if q.More {
		fragment = 0x20
	}
	header = append(header, p.Payload[0], p.Payload[1], fragment, 0, q.TTL, byte(q.Protocol), 0, 0)
	header = append(append(header, q.Source.AsSlice()...), q.Destination.AsSlice()...)
	binary.BigEndian.PutUint16(header[10:], checksum(header))
	return append(append(b, header...), transport...)
}

// transport returns the packet above IP.
func (p *Probe) transport() []byte {
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, p.tuple.SourcePort.Number), p.tuple.DestinationPort.Number)
	switch p.tuple.Protocol {
	case packet.TCP:
		flags, ack := cmp.Or(p.packet.TCPFlags, packet.SYN), make([]byte, 4)
		if flags&packet.ACK != 0 {
			copy(ack, p.Payload[4:])
		}
		b := append(append(append(ports, p.Payload[:4]...), ack...), 5<<4, byte(flags), 0xff, 0xff, 0, 0, 0, 0)
		return p.summed(b, 16)
	case packet.UDP, packet.UDPLite:
		b := append(binary.BigEndian.AppendUint16(ports, uint16(8+len(p.Payload))), 0, 0)
		return p.summed(append(b, p.Payload...), 6)
	case packet.SCTP: // verification tag 0, checksum, and an INIT chunk: its tag, window, streams and first number (RFC 9260 section 3.3.2)
		b := append(ports, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20)
		b = append(append(b, p.Payload[:4]...), 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
		return b
	}
	b := append([]byte{p.tuple.Type, 0, 0, 0, ports[0], ports[1], 0, 1}, p.Payload...)
	if p.tuple.Protocol == packet.ICMPv6 {
		return p.summed(b, 2)
	}
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return b
}

// summed puts the checksum over the transport header and the addresses in its place (RFC 9293 section 3.1, RFC 8200 section 8.1).
func (p *Probe) summed(b []byte, at int) []byte {
	pseudo := append(p.tuple.Source.AsSlice(), p.tuple.Destination.AsSlice()...)
	pseudo = append(binary.BigEndian.AppendUint32(pseudo, uint32(len(b))), 0, 0, 0, byte(p.tuple.Protocol))
	binary.BigEndian.PutUint16(b[at:], checksum(append(pseudo, b...)))
	return b
}
