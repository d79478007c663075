package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"packetwalk.dev/internal/model/witness"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
)

// Probe is one real packet that is ready to be sent from a namespace: its socket is bound, so that its local port is known beforehand.
type Probe struct {
	fd     int
	tuple  packet.Tuple
	packet packet.Packet
	link   int // interface by which it leaves as a frame; 0 for what a socket sends
	// Payload is what a UDP datagram or an ICMP echo carries; random bytes unless set before Send. TCP sends none.
	Payload []byte
	icmp    *witness.ICMPError // that it got
}

// probeKind gives the socket for each protocol that a probe can have.
var probeKind = map[packet.Protocol]int{
	packet.TCP: unix.SOCK_STREAM, packet.UDP: unix.SOCK_DGRAM, packet.ICMP: unix.SOCK_RAW, packet.ICMPv6: unix.SOCK_RAW,
}

// echoRequest gives the type of the query that a probe can send (RFC 792, RFC 4443).
var echoRequest = map[packet.Protocol]uint8{packet.ICMP: 8, packet.ICMPv6: 128}

// Prepare makes a socket in the namespace for one packet: a TCP connection's SYN, a UDP datagram or an ICMP echo. Of the packet it
// takes Protocol and Destination, Source and the ports (the kernel chooses where they are zero; an ICMP identifier is the source port), the
// owner's UID and GID, and TTL, TOS and Mark where they are not zero. Nothing is sent before Send. The caller closes the probe. The error is ErrUnsendable where the
// packet is to blame: its kind, a source that is not the namespace's, or a port that another socket has.
func Prepare(n *netns.Namespace, p packet.Packet) (*Probe, error) {
	fail := func(err error) (*Probe, error) {
		return nil, fmt.Errorf("prepare %s in %s: %w", p.Tuple, n.Path(), err)
	}
	kind, ok := probeKind[p.Protocol]
	if !ok {
		return fail(fmt.Errorf("%w: its protocol is %s, use tcp, udp or icmp", witness.ErrUnsendable, p.Protocol))
	}
	if p.Source.IsValid() && p.Source.Is4() != p.Destination.Is4() {
		return fail(fmt.Errorf("%w: addresses of two families", witness.ErrUnsendable))
	}
	query, icmp := echoRequest[p.Protocol]
	if p.Type != 0 && p.Type != query {
		return fail(fmt.Errorf("%w: its type is %d, use echo requests only", witness.ErrUnsendable, p.Type))
	}
	protocol, family := 0, unix.AF_INET
	if icmp {
		protocol = int(p.Protocol)
	}
	if p.IsIPv6() {
		family = unix.AF_INET6
	}
	probe := &Probe{tuple: p.Tuple, packet: p, Payload: make([]byte, 32)}
	_, _ = rand.Read(probe.Payload) // never fails (crypto/rand)
	err := n.Do(func() (err error) {
		return asOwner(p.UID, p.GID, func() (err error) {
			probe.fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
			return os.NewSyscallError("socket", err)
		})
	})
	if err != nil {
		return fail(err)
	}
	if err := probe.bind(); err != nil {
		return fail(errors.Join(err, probe.Close()))
	}
	return probe, nil
}

// asOwner calls a function with the file system's user and group of its thread, from which a socket takes its owner: rules test that of its
// file (f_cred), policy rules that of its inode (sk_uid). The thread must be locked. It keeps its capabilities for the network.
func asOwner(uid, gid uint32, do func() error) (err error) {
	if uid == 0 && gid == 0 {
		return do()
	}
	set := func(what string, call func(int) (int, error), id int) (before int) {
		before, _ = call(id)
		if now, _ := call(-1); now != id && err == nil { // which changes nothing and tells what is (setfsuid(2))
			err = fmt.Errorf("become %s %d: %w", what, id, unix.EPERM)
		}
		return before
	}
	oldGroup := set("group", unix.SetfsgidRetGid, int(gid))
	oldUser := set("user", unix.SetfsuidRetUid, int(uid))
	if err == nil {
		err = do()
	}
	set("user", unix.SetfsuidRetUid, oldUser)
	set("group", unix.SetfsgidRetGid, oldGroup)
	return err
}

// bind sets the socket's options, and its local port for good.
func (p *Probe) bind() error {
	type option struct{ level, name, value int }
	options := []option{
		{unix.SOL_IP, unix.IP_RECVERR, 1}, {unix.SOL_IP, unix.IP_TTL, int(p.packet.TTL)}, {unix.SOL_IP, unix.IP_TOS, int(p.packet.TOS)},
		{unix.SOL_SOCKET, unix.SO_MARK, int(p.packet.Mark)},
	}
	if p.packet.IsIPv6() {
		options = []option{
			{unix.SOL_IPV6, unix.IPV6_RECVERR, 1}, {unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, int(p.packet.TTL)},
			{unix.SOL_IPV6, unix.IPV6_TCLASS, int(p.packet.TOS)}, {unix.SOL_SOCKET, unix.SO_MARK, int(p.packet.Mark)},
		}
	}
	for _, o := range options {
		if o.value == 0 {
			continue
		}
		if err := unix.SetsockoptInt(p.fd, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	port := p.tuple.SourcePort.Number
	if query, ok := echoRequest[p.tuple.Protocol]; ok {
		p.tuple.Type, p.tuple.DestinationPort = query, packet.Port{}
		if port == 0 {
			port = binary.BigEndian.Uint16(p.Payload)
		}
		p.tuple.SourcePort = packet.Exactly(port)
		port = 0
	}
	switch err := unix.Bind(p.fd, sockaddr(p.source(), port)); {
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: bind: %w", witness.ErrUnsendable, err)
	case err != nil:
		return os.NewSyscallError("bind", err)
	}
	return p.readPort()
}

// source returns the address to bind to: any where none was asked for.
func (p *Probe) source() netip.Addr {
	switch {
	case p.tuple.Source.IsValid():
		return p.tuple.Source
	case p.packet.IsIPv6():
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// readPort learns the local port, and the local address where there is one.
func (p *Probe) readPort() error {
	local, err := unix.Getsockname(p.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	a, port := addrPort(local)
	if !a.IsUnspecified() {
		p.tuple.Source = a
	}
	if p.tuple.Protocol.HasPorts() {
		p.tuple.SourcePort = packet.Exactly(port)
	}
	return nil
}

func sockaddr(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: int(port)}
}

func addrPort(s unix.Sockaddr) (netip.Addr, uint16) {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(s.Addr), uint16(s.Port)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(s.Addr), uint16(s.Port)
	}
	return netip.Addr{}, 0
}

// Tuple returns what is known of the packet: the local port always, the source where it was asked for or the packet was sent.
func (p *Probe) Tuple() packet.Tuple { return p.tuple }

// Close gives the socket back; a TCP connection is closed in the orderly way.
func (p *Probe) Close() error { return os.NewSyscallError("close", unix.Close(p.fd)) }

// Send sends the packet, once, and waits for an answer until patience ends, as if at a deadline. That there was none, or a bad one, is no
// error; that ctx has ended is. TCP repeats its SYN after a second, unless the namespace is traced ([OpenTrace]).
func (p *Probe) Send(ctx, patience context.Context) (witness.Result, error) {
	if p.link != 0 {
		return p.sendFrame(ctx, patience)
	}
	err := p.transmit()
	if err == nil {
		err = p.wait(patience)
	}
	if ctx.Err() != nil {
		return witness.Result{}, ctx.Err()
	}
	if p.icmp == nil {
		p.icmp, _ = p.takeError()
	}
	r := witness.Result{Answer: p.answer(err), Err: err, ICMP: p.icmp}
	if r.ICMP != nil && r.Answer == witness.TimedOut {
		r.Answer = witness.Unreachable
	}
	if e := p.readPort(); e != nil {
		return r, fmt.Errorf("probe %s: %w", p.tuple, e)
	}
	r.Tuple = p.tuple
	return r, nil
}

func (p *Probe) transmit() error {
	err := unix.Connect(p.fd, sockaddr(p.tuple.Destination, p.tuple.DestinationPort.Number))
	if errors.Is(err, unix.EINPROGRESS) {
		err = nil
	}
	if err != nil || p.tuple.Protocol == packet.TCP {
		return os.NewSyscallError("connect", err)
	}
	_, err = unix.Write(p.fd, p.message())
	return os.NewSyscallError("send", err)
}

// message returns the UDP payload, or the ICMP echo. The kernel sums ICMPv6 up by itself, but not ICMP on a raw socket.
func (p *Probe) message() []byte {
	if p.tuple.Protocol == packet.UDP {
		return p.Payload
	}
	m := append([]byte{p.tuple.Type, 0, 0, 0, 0, 0, 0, 1}, p.Payload...)
	binary.BigEndian.PutUint16(m[4:], p.tuple.SourcePort.Number)
	if p.tuple.Protocol == packet.ICMP {
		binary.BigEndian.PutUint16(m[2:], checksum(m))
	}
	return m
}

// checksum returns the internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// pollStep bounds how long a wait goes on after its context ended.
const pollStep = 20 * time.Millisecond

// wait returns nil when an answer came, or the socket's error.
func (p *Probe) wait(ctx context.Context) error {
	events := int16(unix.POLLIN)
	if p.tuple.Protocol == packet.TCP {
		events = unix.POLLOUT
	}
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(p.fd), Events: events}}
		n, err := unix.Poll(fds, int(pollStep/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("poll", err)
		}
		if n <= 0 {
			continue
		}
		done, err := p.checkAnswer()
		if done || err != nil {
			return err
		}
	}
	return ctx.Err()
}

// checkAnswer reports whether the event that made the socket ready is the answer.
func (p *Probe) checkAnswer() (bool, error) {
	if p.connected() {
		return true, nil
	}
	code, err := unix.GetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return false, os.NewSyscallError("SO_ERROR", err)
	case code != 0:
		var others bool
		if p.icmp, others = p.takeError(); p.icmp == nil && others {
			return false, nil
		}
		return false, unix.Errno(code)
	case p.tuple.Protocol == packet.TCP:
		return true, nil
	}
	buf := make([]byte, 2048)
	n, err := unix.Read(p.fd, buf)
	if errors.Is(err, unix.EAGAIN) {
		return false, nil
	}
	if err != nil {
		return false, os.NewSyscallError("receive", err)
	}
	return p.isAnswer(buf[:n]), nil
}

// connected reports whether the connection stands. An error that came for one of its later packets, such as the handshake's last, does not
// change that (tcp_v4_err).
func (p *Probe) connected() bool {
	if p.tuple.Protocol != packet.TCP {
		return false
	}
	info, err := unix.GetsockoptTCPInfo(p.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State != unix.BPF_TCP_SYN_SENT && info.State != unix.BPF_TCP_CLOSE
}

// isAnswer tells an echo's answer from the other ICMP messages that a raw socket gets.
func (p *Probe) isAnswer(b []byte) bool {
	if p.tuple.Protocol == packet.UDP {
		return true
	}
	if p.tuple.Protocol == packet.ICMP {
		b = b[witness.HeaderLength(b):] // a raw IPv4 socket gives the IP header, too
	}
	return len(b) >= 8 && b[0] == p.tuple.Reply().Type && binary.BigEndian.Uint16(b[4:]) == p.tuple.SourcePort.Number
}

func (p *Probe) answer(err error) witness.Answer {
	switch {
	case err == nil && p.tuple.Protocol == packet.TCP:
		return witness.Connected
	case err == nil:
		return witness.Answered
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return witness.TimedOut
	case errors.Is(err, unix.ECONNREFUSED):
		return witness.Refused
	case errors.Is(err, unix.ECONNRESET) && p.tuple.Protocol == packet.TCP:
		return witness.Connected // and reset after that; before, it would have been refused (tcp_reset)
	case errors.Is(err, unix.EPERM):
		return witness.NotSent
	}
	return witness.Unreachable
}

// takeError takes the ICMP error about what was sent that the socket got, if any, and reports whether it passed over such about packets of
// others, which a raw socket gets, too (raw_icmp_error).
func (p *Probe) takeError() (e *witness.ICMPError, others bool) {
	for range maxErrors {
		e, quoted := p.readError()
		if e == nil || p.sent(quoted) {
			return e, others
		}
		others = true
	}
	return nil, others
}

// maxErrors bounds the errors that are passed over at a time.
const maxErrors = 1000

// sent reports whether what an error quotes is what was sent, so far as a socket does not know by itself: an echo's identifier.
func (p *Probe) sent(quoted []byte) bool {
	_, echo := echoRequest[p.tuple.Protocol]
	return !echo || len(quoted) < 8 || binary.BigEndian.Uint16(quoted[4:]) == p.tuple.SourcePort.Number
}

// readError reads an ICMP error, with what it quotes from the transport header on (ip(7), IP_RECVERR).
func (p *Probe) readError() (*witness.ICMPError, []byte) {
	buf, oob := make([]byte, 256), make([]byte, 512)
	quoted, n, _, _, err := unix.Recvmsg(p.fd, buf, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, nil
	}
	const size = int(unsafe.Sizeof(unix.SockExtendedErr{}))
	for _, m := range messages {
		isError := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVERR ||
			m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if !isError || len(m.Data) < size {
			continue
		}
		e := (*unix.SockExtendedErr)(unsafe.Pointer(&m.Data[0]))
		if e.Origin == unix.SO_EE_ORIGIN_ICMP || e.Origin == unix.SO_EE_ORIGIN_ICMP6 {
			return &witness.ICMPError{From: offender(m.Data[size:]), Type: e.Type, Code: e.Code}, buf[:quoted]
		}
	}
	return nil, nil
}

// offender reads the struct sockaddr behind a struct sock_extended_err.
func offender(b []byte) netip.Addr {
	if len(b) < 8 {
		return netip.Addr{}
	}
	switch family := binary.NativeEndian.Uint16(b); {
	case family == unix.AF_INET:
		return netip.AddrFrom4([4]byte(b[4:]))
	case family == unix.AF_INET6 && len(b) >= 24:
		return netip.AddrFrom16([16]byte(b[8:]))
	}
	return netip.Addr{}
}
