package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"packetwalk.dev/internal/model/witness"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
)

// Capture reads copies of chosen packets at every interface of a namespace, as tcpdump -i any does, but with their link-layer headers. It
// changes nothing about them.
type Capture struct {
	file    *os.File
	ns      *netns.Namespace
	filters []witness.PacketFilter
	links   map[int]linkName
	buf     []byte
}

// captureBuffer is the size of the socket's buffer in bytes; captureSnap how much of each packet is copied.
const (
	captureBuffer = 4 << 20
	captureSnap   = 2048
)

// OpenCapture captures the packets in the namespace that one of the filters chooses, and the ICMP errors about them; without any every IP
// packet. It goes on until Close.
func OpenCapture(n *netns.Namespace, filters []witness.PacketFilter) (*Capture, error) {
	fail := func(err error) (*Capture, error) { return nil, fmt.Errorf("capture in %s: %w", n.Path(), err) }
	links, err := linkNames(n)
	if err != nil {
		return fail(err)
	}
	c := &Capture{ns: n, filters: filters, links: links, buf: make([]byte, captureSnap)}
	var fd int
	err = n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return fail(err)
	}
	c.file = os.NewFile(uintptr(fd), "capture")
	// Bound last: until then the socket gets nothing, and so nothing that the filter does not choose.
	err = errors.Join(
		setCaptureFilter(fd, filters),
		os.NewSyscallError("SO_RCVBUFFORCE", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer)),
		os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL)})),
	)
	if err != nil {
		return fail(errors.Join(err, c.Close()))
	}
	return c, nil
}

func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

func setFilter(fd int, filter []bpf.RawInstruction) error {
	program := make([]unix.SockFilter, len(filter))
	for i, f := range filter {
		program[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	return os.NewSyscallError("SO_ATTACH_FILTER", err)
}

// linkName is what a capture says of an interface.
type linkName struct {
	name   string
	bridge bool
}

// linkNames returns the namespace's interfaces by their numbers.
func linkNames(n *netns.Namespace) (map[int]linkName, error) {
	h, err := n.Handle()
	if err != nil {
		return nil, err
	}
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links in %s: %w", n.Path(), err)
	}
	names := make(map[int]linkName, len(links))
	for _, l := range links {
		names[l.Attrs().Index] = linkName{l.Attrs().Name, l.Type() == "bridge"}
	}
	return names, nil
}

// Close ends the capture.
func (c *Capture) Close() error { return c.file.Close() }

// Lost tells how many packets there was no room for since it was last asked.
func (c *Capture) Lost() (int, error) {
	raw, err := c.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var stats *unix.TpacketStats
	var failed error
	err = raw.Control(func(fd uintptr) {
		stats, failed = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	})
	if err := errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("ask for lost packets: %w", err)
	}
	return int(stats.Drops), nil
}

// Pending reports whether there are packets that have not been read yet.
func (c *Capture) Pending() bool {
	raw, err := c.file.SyscallConn()
	return err == nil && readable(raw)
}

// Read waits for the next packet, in the order in which the kernel met them: time stamps would tell less, because a packet that came before
// the kernel had begun to stamp gets that of its reading (net/socket.c: __sock_recv_timestamp). Its error is that of the context when that
// ends first.
func (c *Capture) Read(ctx context.Context) (witness.CapturedPacket, error) {
	if err := c.file.SetReadDeadline(time.Time{}); err != nil {
		return witness.CapturedPacket{}, fmt.Errorf("read capture: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := c.file.SyscallConn()
	if err != nil {
		return witness.CapturedPacket{}, fmt.Errorf("read capture: %w", err)
	}
	for ctx.Err() == nil {
		got, err := c.receive(raw)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case errors.Is(err, unix.ENETDOWN): // an interface went down: nothing to read
			continue
		case err != nil:
			return witness.CapturedPacket{}, fmt.Errorf("read capture: %w", err)
		}
		if len(c.filters) == 0 || slices.ContainsFunc(c.filters, func(f witness.PacketFilter) bool { return chooses(&f, &got) }) {
			return got, nil
		}
	}
	return witness.CapturedPacket{}, ctx.Err()
}

type reader interface {
	Read(func(fd uintptr) (done bool)) error
}

func (c *Capture) receive(raw reader) (witness.CapturedPacket, error) {
	var n int
	var from unix.Sockaddr
	var failed error
	err := raw.Read(func(fd uintptr) bool {
		n, from, failed = unix.Recvfrom(int(fd), c.buf, 0)
		return failed != unix.EAGAIN && failed != unix.EINTR
	})
	if err := errors.Join(err, failed); err != nil {
		return witness.CapturedPacket{}, err
	}
	link, ok := from.(*unix.SockaddrLinklayer)
	if !ok {
		return witness.CapturedPacket{}, fmt.Errorf("unexpected address %T", from)
	}
	at := c.link(link.Ifindex)
	got := witness.CapturedPacket{Link: at.name, Bridge: at.bridge, Out: link.Pkttype == unix.PACKET_OUTGOING}
	h := witness.Headers{Network: bytes.Clone(c.buf[:n])}
	if hasEther(link.Hatype) && n >= 14 {
		h.Link, h.Network = h.Network[:14], h.Network[14:]
	}
	h.Transport = h.Network[witness.HeaderLength(h.Network):]
	got.Packet, got.Transport, got.Label = h.Parse(), h.Transport, witness.Label(h.Network)
	got.Packet.Cast = casts[link.Pkttype]
	return got, nil
}

var casts = map[uint8]packet.Cast{
	unix.PACKET_BROADCAST: packet.BroadcastFrame, unix.PACKET_MULTICAST: packet.MulticastFrame, unix.PACKET_OTHERHOST: packet.OtherHost,
}

func (c *Capture) link(index int) linkName {
	if l, ok := c.links[index]; ok {
		return l
	}
	if links, err := linkNames(c.ns); err == nil {
		c.links = links
	}
	return c.links[index]
}

// chooses reports whether the packet, or what it is an error about, is one of the filter's.
func chooses(f *witness.PacketFilter, c *witness.CapturedPacket) bool {
	if c.Packet.About != nil && within(*c.Packet.About, f.Tuple) {
		return true
	}
	if !chosen(&c.Packet, f.Tuple) || !bytes.HasPrefix(c.Transport[min(8, len(c.Transport)):], start(f)) {
		return false
	}
	if f.Carried == nil {
		return true
	}
	inner, _, ok := witness.Decapsulate(c.Transport)
	return ok && chosen(&inner, *f.Carried)
}

// chosen reports whether a packet has the tuple, and is of the kind that filters choose.
func chosen(p *packet.Packet, t packet.Tuple) bool {
	if p.Protocol == packet.TCP && p.TCPFlags&(packet.SYN|packet.RST) == 0 {
		return false
	}
	icmp := p.Protocol == packet.ICMP || p.Protocol == packet.ICMPv6
	return within(p.Tuple, t) && (!icmp || p.Type == t.Type)
}

func within(p, t packet.Tuple) bool {
	address := func(a, want netip.Addr) bool { return !want.IsValid() || want.IsUnspecified() || a == want }
	port := func(n, want packet.Port) bool {
		low, high := want.Span()
		return want == packet.Port{} || low <= n.Number && n.Number <= high
	}
	return p.Protocol == t.Protocol && address(p.Source, t.Source) && address(p.Destination, t.Destination) &&
		port(p.SourcePort, t.SourcePort) && port(p.DestinationPort, t.DestinationPort)
}
