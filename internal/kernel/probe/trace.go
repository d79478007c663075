package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"packetwalk.dev/internal/model/witness"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/packet"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// Trace is the kernel's own account of what one namespace's nf_tables rules (nft's, iptables-nft's, ebtables-nft's) do to chosen packets:
// NFT_MSG_TRACE messages of the group NFNLGRP_NFTRACE. The kernel reports the rules that matched and the policies that decided; rules
// that did not match it does not report, and tables of iptables-legacy not at all.
//
// The packets are chosen by rules in tables of the trace's own. Those belong to a netlink socket (NFT_TABLE_F_OWNER, Linux 5.12): they go
// when it is closed, by Close or because the process is killed.
type Trace struct {
	events  *netlink.Conn // of the multicast group
	owner   *netlink.Conn // of the tables that switch tracing on
	table   string
	tables  []nf.Table // that owner has made, one a family
	pending []witness.TraceEvent
}

// traceBuffer is the size of the socket's buffer in bytes: an event takes about 1 kB of it, a packet makes some 10 to 100 a machine.
const traceBuffer = 8 << 20

// errTraceLost says that the kernel had events for which there was no room.
var errTraceLost = errors.New("the kernel dropped trace events: they came faster than they were read")

// ErrTraceLogged says that the machine's own namespace has tables of iptables-legacy, and a logger: the kernel writes each rule of theirs
// that a traced packet meets into its log, whoever switched tracing on (ip_tables.c: trace_packet).
var ErrTraceLogged = errors.New("its rules of iptables-legacy would write traced packets into the kernel's log: walk without --live")

// logsTraces reports whether that is so. Other namespaces than the machine's own log only where its nf_log_all_netns says so, which they do
// not have (nf_log.c).
func logsTraces(n *netns.Namespace) bool {
	const allFile = "/proc/sys/net/netfilter/nf_log_all_netns"
	all, _ := os.ReadFile(allFile) // of the namespace that this process is in
	everywhere := string(bytes.TrimSpace(all)) == "1"
	logs := false
	_ = n.Do(func() error {
		if own, _ := os.ReadFile(allFile); len(own) == 0 && !everywhere {
			return nil
		}
		for tables, logger := range map[string]string{"ip_tables_names": "2", "ip6_tables_names": "10"} {
			legacy, _ := os.ReadFile("/proc/thread-self/net/" + tables)
			name, _ := os.ReadFile("/proc/sys/net/netfilter/nf_log/" + logger)
			logs = logs || len(legacy) > 0 && len(name) > 0 && string(bytes.TrimSpace(name)) != "NONE"
		}
		return nil
	})
	return logs
}

// OpenTrace traces the packets in the namespace that one of the filters chooses, and the ICMP errors about packets that have one of the
// tuples in about: of an error's quotation an event does not show enough to tell. Until Close the namespace's own repeated SYNs are
// dropped, which TCP sends when a second has gone by, with those of the tuples in about that have a destination and both ports exactly: of
// one connection. The error is [ErrTraceLogged] where the kernel would write the packets into its log.
func OpenTrace(n *netns.Namespace, filters []witness.PacketFilter, about []packet.Tuple) (*Trace, error) {
	fail := func(err error) (*Trace, error) { return nil, fmt.Errorf("trace in %s: %w", n.Path(), err) }
	if logsTraces(n) {
		return fail(ErrTraceLogged)
	}
	links, err := linkNames(n)
	if err != nil {
		return fail(err)
	}
	bridges := slices.ContainsFunc(slices.Collect(maps.Values(links)), func(l linkName) bool { return l.bridge })
	t := &Trace{table: newTraceTable()}
	if t.events, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: n.FD()}); err != nil {
		return fail(err)
	}
	if err := errors.Join(t.events.SetReadBuffer(traceBuffer), t.events.JoinGroup(unix.NFNLGRP_NFTRACE)); err != nil {
		return fail(errors.Join(err, t.Close()))
	}
	if t.owner, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: n.FD()}); err != nil {
		return fail(errors.Join(err, t.Close()))
	}
	if t.tables, err = addTraceRules(t.owner, t.table, filters, about, bridges); err != nil {
		return fail(errors.Join(err, t.Close()))
	}
	return t, nil
}

// Close ends tracing and takes its tables away. It deletes them: a program that is being started has the socket, too, until it runs (fork,
// then close-on-exec), and for so long closing it here takes nothing away.
func (t *Trace) Close() error {
	var errs []error
	if len(t.tables) > 0 {
		errs = append(errs, deleteTables(t.owner, t.tables))
	}
	for _, c := range []*netlink.Conn{t.owner, t.events} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// Read waits for the next event. Its error is that of the context when that ends first, and errTraceLost where events are missing; reading
// may go on after it.
func (t *Trace) Read(ctx context.Context) (witness.TraceEvent, error) {
	for {
		if len(t.pending) > 0 {
			e := t.pending[0]
			t.pending = t.pending[1:]
			return e, nil
		}
		if err := t.receive(ctx); err != nil {
			return witness.TraceEvent{}, err
		}
	}
}

// Pending reports whether the kernel has written events that have not been read yet.
func (t *Trace) Pending() bool {
	raw, err := t.events.SyscallConn()
	return err == nil && readable(raw)
}

// readable reports whether a read of a socket would not wait.
func readable(raw syscall.RawConn) bool {
	ready := false
	err := raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		ready = err == nil && n > 0
	})
	return err == nil && ready
}

func (t *Trace) receive(ctx context.Context) error {
	if err := t.events.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("read trace: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = t.events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := ctx.Err(); err != nil {
		return err
	}
	messages, err := t.events.Receive()
	switch {
	case errors.Is(err, unix.ENOBUFS):
		return errTraceLost
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("read trace: %w", err)
	}
	for _, m := range messages {
		e, err := parseTrace(m)
		if err != nil {
			return fmt.Errorf("read trace: %w", err)
		}
		if e == nil || !t.accept(e) {
			continue
		}
		t.pending = append(t.pending, *e)
	}
	return nil
}

// accept turns the event of a rule of this trace into TraceEntered, and reports whether the event is not of another trace's table.
func (t *Trace) accept(e *witness.TraceEvent) bool {
	if e.Table == t.table {
		e.Kind = witness.TraceEntered
		return true
	}
	return !witness.IsTraceTable(e.Table)
}

var traceKinds = map[uint32]witness.TraceKind{
	unix.NFT_TRACETYPE_POLICY: witness.TracePolicy, unix.NFT_TRACETYPE_RETURN: witness.TraceReturn, unix.NFT_TRACETYPE_RULE: witness.TraceRule,
}

func familyName(f uint8) string {
	if name, ok := ruleset.Families[f]; ok {
		return name
	}
	return strconv.Itoa(int(f))
}

// parseTrace reads an NFT_MSG_TRACE message; nil for other messages.
func parseTrace(m netlink.Message) (*witness.TraceEvent, error) {
	if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE {
		return nil, nil
	}
	if len(m.Data) < nfgenLen {
		return nil, fmt.Errorf("message of %d bytes is too short", len(m.Data))
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[nfgenLen:])
	if err != nil {
		return nil, err
	}
	ad.ByteOrder = binary.BigEndian
	e := &witness.TraceEvent{Family: familyName(m.Data[0])}
	var h witness.Headers
	for ad.Next() {
		readEvent(e, ad, &h)
	}
	if err := ad.Err(); err != nil {
		return nil, err
	}
	if e.Kind == witness.TraceRule && e.Handle == 0 {
		e.Kind = witness.TraceReturn // Linux 6 reports a chain's end as a rule that continues, without a handle
	}
	if !hasEther(h.LinkType) {
		h.Link = nil
	}
	if h.Network != nil {
		p := h.Parse()
		p.Mark = e.Mark
		e.Packet, e.Transport, e.Label = &p, h.Transport, witness.Label(h.Network)
	}
	return e, nil
}

// read takes one attribute (enum nft_trace_attributes).
func readEvent(e *witness.TraceEvent, ad *netlink.AttributeDecoder, h *witness.Headers) {
	switch ad.Type() {
	case unix.NFTA_TRACE_ID:
		e.ID = ad.Uint32()
	case unix.NFTA_TRACE_TABLE:
		e.Table = ad.String()
	case unix.NFTA_TRACE_CHAIN:
		e.Chain = ad.String()
	case unix.NFTA_TRACE_RULE_HANDLE:
		e.Handle = ad.Uint64()
	case unix.NFTA_TRACE_TYPE:
		kind := ad.Uint32()
		if e.Kind = traceKinds[kind]; e.Kind == "" {
			e.Kind = witness.TraceKind("type " + strconv.Itoa(int(kind)))
		}
	case unix.NFTA_TRACE_VERDICT:
		ad.Nested(func(ad *netlink.AttributeDecoder) error { return readVerdict(e, ad) })
	case unix.NFTA_TRACE_POLICY:
		e.Verdict = verdictName(int32(ad.Uint32()))
	case unix.NFTA_TRACE_MARK:
		e.Mark = ad.Uint32()
	case unix.NFTA_TRACE_IIFTYPE:
		h.LinkType = ad.Uint16()
	case unix.NFTA_TRACE_LL_HEADER:
		h.Link = ad.Bytes()
	case unix.NFTA_TRACE_NETWORK_HEADER:
		h.Network = ad.Bytes()
	case unix.NFTA_TRACE_TRANSPORT_HEADER:
		h.Transport = ad.Bytes()
	}
}

func readVerdict(e *witness.TraceEvent, ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_VERDICT_CODE:
			e.Verdict = verdictName(int32(ad.Uint32()))
		case unix.NFTA_VERDICT_CHAIN:
			e.Target = ad.String()
		}
	}
	return ad.Err()
}

// verdictNames are those of include/uapi/linux/netfilter.h and of enum nft_verdicts.
var verdictNames = map[int32]string{
	0: "drop", 1: "accept", 2: "stolen", 3: "queue", 4: "repeat",
	unix.NFT_CONTINUE: "continue", unix.NFT_BREAK: "break", unix.NFT_JUMP: "jump", unix.NFT_GOTO: "goto", unix.NFT_RETURN: "return",
}

// verdictName leaves out what the upper bits of a verdict of the kernel's core hold: a queue's number, an error.
func verdictName(code int32) string {
	if code >= 0 {
		code &= 0xff
	}
	if name, ok := verdictNames[code]; ok {
		return name
	}
	return strconv.Itoa(int(code))
}

// hasEther reports whether an interface's frames have an Ethernet header.
func hasEther(linkType uint16) bool {
	return linkType == unix.ARPHRD_ETHER || linkType == unix.ARPHRD_LOOPBACK
}
