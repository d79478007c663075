package app

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"packetwalk.dev/internal/addons/dnsupdate"
)

// dns is a small authoritative name server (RFC 1035) on port 53, UDP and TCP, for the lab's internet: it answers A, AAAA and, for the
// addresses that it knows, PTR. Its names are its arguments, "name=address[,address…]"; a name "*.zone" answers for every name below the zone.
// Names that it does not have do not exist: there is nobody else to ask. Before the names:
//
//	-listen ADDRESS     answer at that address alone, from which the answers then come
//	-zone NAME FILE     the names of a zone are in a file, which is read again when it has changed (see dynamicZone)
//	-update             take updates and transfers of that zone, from everybody
func dns(ctx context.Context, p *Process) int {
	s, at, err := dnsArguments(p.Args[1:])
	if err != nil {
		fmt.Fprintf(p.Stderr, "dns: %v\n", err)
		return 2
	}
	tcp, udp, err := listenBoth(ctx, net.JoinHostPort(at, "53"))
	if err != nil {
		fmt.Fprintf(p.Stderr, "dns: %v\n", err)
		return 1
	}
	s.log = p.Stdout
	go s.serveTCP(tcp)
	p.Ready()
	s.serveUDP(udp)
	return 0
}

func dnsArguments(args []string) (s *nameServer, at string, err error) {
	s = &nameServer{}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch {
		case args[0] == "-listen" && len(args) > 1:
			at, args = args[1], args[2:]
		case args[0] == "-zone" && len(args) > 2:
			s.dynamic, args = &dynamicZone{name: strings.ToLower(args[1]), file: args[2]}, args[3:]
		case args[0] == "-update" && s.dynamic != nil:
			s.updates, args = true, args[1:]
		default:
			return nil, "", fmt.Errorf("what %q means needs more arguments: want -listen ADDRESS, -zone NAME FILE, -update after -zone", args[0])
		}
	}
	s.zone, err = parseZone(args)
	return s, at, err
}

// listenBoth listens on an address of TCP and of UDP until ctx ends.
func listenBoth(ctx context.Context, address string) (tcp net.Listener, udp net.PacketConn, err error) {
	if tcp, err = net.Listen("tcp", address); err != nil {
		return nil, nil, err
	}
	if udp, err = net.ListenPacket("udp", address); err != nil {
		tcp.Close()
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { tcp.Close(); udp.Close() })
	return tcp, udp, nil
}

// A zone has the addresses of names, which are lower case, without the last dot.
type zone map[string][]netip.Addr

func parseZone(args []string) (zone, error) {
	z := zone{}
	for _, arg := range args {
		name, list, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not name=address[,address…]", arg)
		}
		name = strings.ToLower(strings.TrimSuffix(name, "."))
		for _, text := range strings.Split(list, ",") {
			address, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", arg, err)
			}
			z[name] = append(z[name], address)
		}
	}
	return z, nil
}

// addresses finds a name's, or those of the closest wildcard (RFC 4592).
func (z zone) addresses(name string) ([]netip.Addr, bool) {
	if found, ok := z[name]; ok {
		return found, true
	}
	for rest := name; ; {
		_, parent, ok := strings.Cut(rest, ".")
		if !ok {
			return nil, false
		}
		if found, ok := z["*."+parent]; ok {
			return found, true
		}
		rest = parent
	}
}

// pointer finds the name of an address; the zone's wildcards have none.
func (z zone) pointer(address netip.Addr) (string, bool) {
	best := ""
	for name, addresses := range z {
		for _, a := range addresses {
			if a == address && !strings.HasPrefix(name, "*") && (best == "" || name < best) {
				best = name
			}
		}
	}
	return best, best != ""
}

// The numbers of RFC 1035, sections 3.2 and 4.1, and RFC 3596.
const (
	typeA, typePTR, typeAAAA, typeANY           = 1, 12, 28, 255
	classIN                                     = 1
	flagResponse, flagAuthoritative, flagWanted = 1 << 15, 1 << 10, 1 << 8
	codeFormat, codeName, codeNotImplemented    = 1, 3, 4
	dnsTTL                                      = 30 // seconds: a lab's names change with the lab
)

type question struct {
	name        string // lower case, without the last dot
	kind, class uint16
	raw         []byte // as asked
}

var errMessage = errors.New("malformed message")

// parseQuestion reads the one question of a query.
func parseQuestion(msg []byte) (q question, err error) {
	if len(msg) < 12 || binary.BigEndian.Uint16(msg[4:]) != 1 {
		return q, errMessage
	}
	rest := msg[12:]
	var labels []string
	for {
		if len(rest) == 0 {
			return q, errMessage
		}
		n := int(rest[0])
		if n > 63 || len(rest) < 1+n { // a pointer has nothing to point to in a first name
			return q, errMessage
		}
		if n == 0 {
			rest = rest[1:]
			break
		}
		labels = append(labels, strings.ToLower(string(rest[1:1+n])))
		rest = rest[1+n:]
	}
	if len(rest) < 4 {
		return q, errMessage
	}
	end := len(msg) - len(rest) + 4
	q = question{strings.Join(labels, "."), binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:]), msg[12:end]}
	if len(q.raw) > 255+4 {
		return q, errMessage
	}
	return q, nil
}

// answer is the reply to a message, nil if it is none to reply to.
func (z zone) answer(msg []byte) []byte {
	if len(msg) < 12 || msg[2]&0x80 != 0 {
		return nil
	}
	flags := uint16(flagResponse|flagAuthoritative) | binary.BigEndian.Uint16(msg[2:])&(flagWanted|0x7800)
	if msg[2]&0x78 != 0 {
		return dnsMessage(msg, flags|codeNotImplemented, nil, nil)
	}
	q, err := parseQuestion(msg)
	if err != nil {
		return dnsMessage(msg, flags|codeFormat, nil, nil)
	}
	records, exists := z.records(q)
	if !exists {
		flags |= codeName
	}
	return dnsMessage(msg, flags, q.raw, records)
}

// records are the answers' types and data.
func (z zone) records(q question) (records []record, exists bool) {
	if q.class != classIN && q.class != typeANY {
		return nil, true
	}
	if address, ok := reverseAddress(q.name); ok {
		name, ok := z.pointer(address)
		if ok && (q.kind == typePTR || q.kind == typeANY) {
			records = append(records, record{typePTR, wireName(name)})
		}
		return records, ok
	}
	addresses, exists := z.addresses(q.name)
	for _, a := range addresses {
		kind := uint16(typeAAAA)
		if a.Is4() {
			kind = typeA
		}
		if q.kind == kind || q.kind == typeANY {
			records = append(records, record{kind, a.AsSlice()})
		}
	}
	return records, exists
}

type record struct {
	kind uint16
	data []byte
}

// dnsMessage is a reply to query; each answer's name is a pointer to the question's (RFC 1035, 4.1.4).
func dnsMessage(query []byte, flags uint16, question []byte, records []record) []byte {
	out := append([]byte(nil), query[:2]...)
	questions := uint16(0)
	if question != nil {
		questions = 1
	}
	for _, n := range []uint16{flags, questions, uint16(len(records)), 0, 0} {
		out = binary.BigEndian.AppendUint16(out, n)
	}
	out = append(out, question...)
	for _, r := range records {
		out = append(out, 0xc0, 12)
		out = binary.BigEndian.AppendUint16(out, r.kind)
		out = binary.BigEndian.AppendUint16(out, classIN)
		out = binary.BigEndian.AppendUint32(out, dnsTTL)
		out = binary.BigEndian.AppendUint16(out, uint16(len(r.data)))
		out = append(out, r.data...)
	}
	return out
}

func wireName(name string) (out []byte) {
	for _, label := range strings.Split(name, ".") {
		out = append(append(out, byte(len(label))), label...)
	}
	return append(out, 0)
}

// reverseAddress reads "4.3.2.1.in-addr.arpa" (RFC 1035, 3.5) and its 32 nibbles under ip6.arpa (RFC 3596, 2.5).
func reverseAddress(name string) (netip.Addr, bool) {
	if digits, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		parts := strings.Split(digits, ".")
		reverse(parts)
		a, err := netip.ParseAddr(strings.Join(parts, "."))
		return a, err == nil && a.Is4()
	}
	nibbles, ok := strings.CutSuffix(name, ".ip6.arpa")
	parts := strings.Split(nibbles, ".")
	if !ok || len(parts) != 32 {
		return netip.Addr{}, false
	}
	reverse(parts)
	var text strings.Builder
	for i, part := range parts {
		if i > 0 && i%4 == 0 {
			text.WriteByte(':')
		}
		text.WriteString(part)
	}
	a, err := netip.ParseAddr(text.String())
	return a, err == nil
}

func reverse(parts []string) {
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
}

type nameServer struct {
	zone    zone
	dynamic *dynamicZone // nil without one
	updates bool
	// changing is held while an update is made.
	changing sync.Mutex
	log      io.Writer
}

func (s *nameServer) reply(msg []byte, from net.Addr) []byte {
	if s.updates && isUpdate(msg) {
		return s.update(msg, from)
	}
	q, err := parseQuestion(msg)
	if err == nil {
		fmt.Fprintf(s.log, "%s %d %s\n", addrPort(from), q.kind, logged(q.name))
	}
	if d := s.dynamic; err == nil && d != nil && dnsupdate.InZone(q.name, d.name) {
		return d.answer(msg)
	}
	return s.zone.answer(msg)
}

// udpLimit is what a reply over UDP may have where the query does not say otherwise (RFC 1035, 2.3.4).
const udpLimit = 512

func (s *nameServer) serveUDP(conn net.PacketConn) {
	buf := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		reply := s.reply(buf[:n], from)
		if len(reply) > udpLimit {
			reply = truncated(reply)
		}
		if reply != nil {
			_, _ = conn.WriteTo(reply, from)
		}
	}
}

// truncated is the reply with the TC bit and without answers: the client asks again over TCP.
func truncated(reply []byte) []byte {
	reply[2] |= 1 << 1
	reply[6], reply[7] = 0, 0
	if q, err := parseQuestion(reply); err == nil {
		return reply[:12+len(q.raw)]
	}
	return reply[:12]
}

func (s *nameServer) serveTCP(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		go s.connection(conn)
	}
}

func (s *nameServer) connection(conn net.Conn) {
	defer conn.Close()
	for {
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		msg := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, msg); err != nil {
			return
		}
		replies := s.transfer(msg, conn.RemoteAddr())
		if replies == nil {
			replies = [][]byte{s.reply(msg, conn.RemoteAddr())}
		}
		for _, reply := range replies {
			if reply == nil {
				return
			}
			if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
				return
			}
		}
	}
}
