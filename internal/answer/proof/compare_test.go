package proof_test

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

const handSeq = 1000 // of the SYN that is compared

var (
	nat    = &netfilter.Table{Family: netfilter.IPv4, Name: "nat", Dialect: netfilter.IPTablesNFT}
	legacy = &netfilter.Table{Family: netfilter.IPv4, Name: "filter", Dialect: netfilter.IPTablesLegacy}
	post   = &netfilter.Chain{Table: nat, Name: "POSTROUTING", Base: &netfilter.Base{Type: "nat"}, Rules: make([]netfilter.Rule, 3)}
	masq   = &netfilter.Chain{Table: nat, Name: "MASQ"}
	input  = &netfilter.Chain{Table: legacy, Name: "INPUT", Base: &netfilter.Base{Type: "filter"}}
)

func syn(source, destination string) packet.Packet {
	a, b := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
	return packet.Packet{TCPFlags: packet.SYN, TTL: 64, Tuple: packet.Tuple{Protocol: packet.TCP, Source: a.Addr(), Destination: b.Addr(),
		SourcePort: packet.Exactly(a.Port()), DestinationPort: packet.Exactly(b.Port())}}
}

// handMade returns a SYN that its own host masquerades, and the kernel's report of it: prediction and kernel agree until a test changes
// one.
func handMade() (*walk.Result, *proof.Observation) {
	before, after := syn("10.0.0.1:4000", "10.0.0.2:80"), syn("10.9.9.9:4000", "10.0.0.2:80")
	after.SourcePort = packet.OneOf(1024, 65535, 2000)
	after.Mark = 0x4
	marked := before
	marked.Mark = after.Mark
	out := after
	out.Out = "eth0"
	in := after
	in.Local = packet.Local{In: "eth0"}
	in.TTL = 63
	rule := func(c *netfilter.Chain, number int, v netfilter.Verdict, p packet.Packet, changes ...packet.Change) walk.Step {
		r := &netfilter.Rule{Number: number, Text: "-j " + v.Kind.String()}
		return walk.Step{Host: "a", Stage: walk.Ruled, Packet: p, Visit: &netfilter.Visit{Chain: c, Rule: r, Verdict: v, Changes: changes}}
	}
	mark := packet.Change{Field: "mark", From: "0x0", To: "0x4"}
	there := []walk.Step{
		{Host: "a", Stage: walk.Sent, Packet: before},
		rule(post, 2, netfilter.Verdict{Kind: netfilter.Jump, Chain: masq}, before),
		rule(masq, 1, netfilter.Verdict{Kind: netfilter.Continue}, marked, mark),
		{Host: "a", Stage: walk.Ruled, Packet: marked, Visit: &netfilter.Visit{Chain: masq, Verdict: netfilter.Verdict{Kind: netfilter.Return}}},
		rule(post, 3, netfilter.Verdict{Kind: netfilter.Accept}, after),
		{Host: "a", Stage: walk.Transmit, Packet: out},
		{Host: "b", Stage: walk.Received, Packet: in},
		{Host: "b", Stage: walk.Ruled, Packet: in, Visit: &netfilter.Visit{Chain: input, Verdict: netfilter.Verdict{Kind: netfilter.Drop}}},
		{Host: "b", Stage: walk.Ended, Packet: in},
	}
	result := &walk.Result{Request: walk.Request{Host: "a", Packet: before},
		Outcomes: []walk.Outcome{{There: there, End: walk.End{Kind: walk.Dropped, Host: "b"}}}}

	transport := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 0}, handSeq)
	transport = append(transport, 0, 0, 0, 0)
	event := func(chain string, handle uint64, verdict, target string, mark uint32, p *packet.Packet) witness.TraceEvent {
		return witness.TraceEvent{ID: 7, Family: "ip", Table: "nat", Chain: chain, Handle: handle, Kind: witness.TraceRule, Verdict: verdict,
			Target: target, Mark: mark, Packet: p, Transport: transport}
	}
	real1, real2 := syn("10.9.9.9:5555", "10.0.0.2:80"), syn("10.9.9.9:5555", "10.0.0.2:80")
	real2.TTL = 63
	implicit := event("MASQ", 0, "continue", "", 4, nil)
	implicit.Kind = witness.TraceReturn
	o := &proof.Observation{Answer: witness.Result{Tuple: before.Tuple, Answer: witness.TimedOut}, Hosts: map[string]*proof.Host{
		"a": {
			Trace: []witness.TraceEvent{
				event("POSTROUTING", 12, "jump", "MASQ", 0, &before), event("MASQ", 20, "continue", "", 4, nil), implicit,
				event("POSTROUTING", 13, "accept", "", 4, nil),
			},
			Packets: []witness.CapturedPacket{{Link: "eth0", Out: true, Packet: real1, Transport: transport}},
			Handles: map[proof.ChainID][]uint64{{Family: "ip", Table: "nat", Chain: "POSTROUTING"}: {11, 12, 13},
				{Family: "ip", Table: "nat", Chain: "MASQ"}: {20}},
		},
		"b": {Packets: []witness.CapturedPacket{{Link: "eth0", Packet: real2, Transport: transport}}},
	}}
	return result, o
}

func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*walk.Result, *proof.Observation)
		want   string // a part of the report
	}{
		"agree": {func(*walk.Result, *proof.Observation) {},
			"kernel: 6 of 6 steps agree; 1 in iptables-legacy tables or at ingress, not traced"},
		"another rule": {func(_ *walk.Result, o *proof.Observation) { o.Hosts["a"].Trace[3].Handle = 11 },
			"predicted: ip nat POSTROUTING 3: accept: -j accept\n  kernel:    ip nat POSTROUTING 1 (handle 11): accept"},
		"new rule": {func(_ *walk.Result, o *proof.Observation) { o.Hosts["a"].Trace[3].Handle = 99 },
			"kernel:    ip nat POSTROUTING handle 99: accept"},
		"verdict": {func(_ *walk.Result, o *proof.Observation) { o.Hosts["a"].Trace[3].Verdict = "drop" },
			"they part on a:\n  predicted: ip nat POSTROUTING 3: accept"},
		"target": {func(_ *walk.Result, o *proof.Observation) { o.Hosts["a"].Trace[0].Target = "OTHER" },
			"kernel:    ip nat POSTROUTING 2 (handle 12): jump OTHER"},
		"mark": {func(_ *walk.Result, o *proof.Observation) { o.Hosts["a"].Trace[1].Mark = 5 }, "(mark 0x5, predicted 0x4)"},
		"tuple": {func(_ *walk.Result, o *proof.Observation) {
			p := syn("10.0.0.7:4000", "10.0.0.2:80")
			o.Hosts["a"].Trace[0].Packet = &p
		}, "the same rule (packet tcp 10.0.0.7:4000 > 10.0.0.2:80, predicted tcp 10.0.0.1:4000 > 10.0.0.2:80)"},
		"fewer rules": {func(_ *walk.Result, o *proof.Observation) { o.Hosts["a"].Trace = o.Hosts["a"].Trace[:3] },
			"kernel:    the packet did not get there"},
		"more rules": {func(r *walk.Result, _ *proof.Observation) { r.Outcomes[0].There[4] = r.Outcomes[0].There[3] },
			"predicted: no further rule\n  kernel:    ip nat POSTROUTING 3 (handle 13): accept"},
		"repeat of what a rule dropped": {func(r *walk.Result, o *proof.Observation) {
			r.Outcomes[0].There[4].Visit.Verdict.Kind, o.Hosts["a"].Trace[3].Verdict = netfilter.Drop, "drop"
			repeatTrace(o)
		}, "kernel: 6 of 6 steps agree; 1 in iptables-legacy tables or at ingress, not traced; not compared: 2 rules that the packet met when it was sent again"},
		"repeat that was sent": {func(_ *walk.Result, o *proof.Observation) {
			repeatTrace(o)
			o.Hosts["a"].Packets = append(o.Hosts["a"].Packets, o.Hosts["a"].Packets[0])
		}, "not traced; not compared: 2 rules that the packet met when it was sent again"},
		"repeat on lo": {func(r *walk.Result, o *proof.Observation) {
			repeatTrace(o)
			onLoopback(r, o)
			o.Hosts["a"].Packets = append(o.Hosts["a"].Packets, o.Hosts["a"].Packets[0])
		}, "not traced; not compared: 2 rules that the packet met when it was sent again"},
		"no repeat on lo": {func(r *walk.Result, o *proof.Observation) {
			repeatTrace(o)
			onLoopback(r, o)
		}, "predicted: no further rule\n  kernel:    ip nat POSTROUTING 2 (handle 12): jump MASQ"},
		"repeat that was not sent": {func(_ *walk.Result, o *proof.Observation) { repeatTrace(o) },
			"predicted: no further rule\n  kernel:    ip nat POSTROUTING 2 (handle 12): jump MASQ"},
		"sent again and more rules": {func(r *walk.Result, o *proof.Observation) {
			o.Hosts["a"].Packets = append(o.Hosts["a"].Packets, o.Hosts["a"].Packets[0])
			r.Outcomes[0].There[4] = r.Outcomes[0].There[3]
		}, "predicted: no further rule\n  kernel:    ip nat POSTROUTING 3 (handle 13): accept"},
		"port not in it": {func(_ *walk.Result, o *proof.Observation) {
			o.Hosts["a"].Packets[0].Packet.SourcePort = packet.Exactly(1023)
		}, "out of eth0: tcp 10.9.9.9:1023 > 10.0.0.2:80, TTL 64 (predicted tcp 10.9.9.9:1024-65535 > 10.0.0.2:80)"},
		"TTL": {func(_ *walk.Result, o *proof.Observation) { o.Hosts["b"].Packets[0].Packet.TTL = 62 },
			"they part on b:\n  predicted: in by eth0: tcp 10.9.9.9:1024-65535 > 10.0.0.2:80, TTL 63\n  kernel:    in by eth0: tcp 10.9.9.9:5555 > 10.0.0.2:80, TTL 62 (predicted TTL 63)"},
		"lost":        {func(_ *walk.Result, o *proof.Observation) { o.Hosts["b"].Packets = nil }, "in by eth0: the packet was not seen there"},
		"answer":      {func(_ *walk.Result, o *proof.Observation) { o.Answer.Answer = witness.Connected }, "kernel: 5 of 6 steps agree"},
		"unseen host": {func(_ *walk.Result, o *proof.Observation) { delete(o.Hosts, "b") }, "kernel: 5 of 5 steps agree; not seen: b"},
		"another flow": {func(_ *walk.Result, o *proof.Observation) { o.Hosts["b"].Packets[0].Transport = make([]byte, 20) },
			"the packet was not seen there"},
		"undecided": {func(r *walk.Result, _ *proof.Observation) {
			o := &r.Outcomes[0]
			o.There, o.End.Kind = o.There[:3], walk.Undecided
		}, "kernel: 2 of 2 steps agree; what follows is unknown"},
		"unread, applied": {func(r *walk.Result, o *proof.Observation) { unreadRule(r, 3) },
			"kernel: 3 of 3 steps agree; what follows is unknown"},
		"unread, another rule applied": {func(r *walk.Result, o *proof.Observation) { unreadRule(r, 2) },
			"kernel: 2 of 2 steps agree; what follows is unknown"},
		"unread, the policy applied": {func(r *walk.Result, o *proof.Observation) {
			unreadRule(r, 3)
			e := &o.Hosts["a"].Trace[3]
			e.Kind, e.Handle = witness.TracePolicy, 0
		}, "kernel: 2 of 2 steps agree; what follows is unknown"},
		"unread, an earlier rule applied": {func(r *walk.Result, o *proof.Observation) {
			unreadRule(r, 3)
			o.Hosts["a"].Trace[3].Handle = 12
		}, "they part on a:\n  predicted: ip nat POSTROUTING 3: unknown"},
		"unread, not reached": {func(r *walk.Result, o *proof.Observation) {
			unreadRule(r, 3)
			o.Hosts["a"].Trace = o.Hosts["a"].Trace[:3]
		}, "the packet did not get there"},
		"connection forgotten": {func(r *walk.Result, _ *proof.Observation) { keepConnection(r, packet.Confirmed) },
			"predicted: connection 10.0.0.1:4000 > 10.0.0.2:80, replies 10.0.0.2:80 > 10.0.0.1:4000, mark 0x0\n  kernel:    no such connection"},
		"connection reset": {func(r *walk.Result, o *proof.Observation) {
			keepConnection(r, packet.Confirmed)
			resetConnection(o)
		}, "kernel: 6 of 6 steps agree"},
		"answered connection reset": {func(r *walk.Result, o *proof.Observation) {
			keepConnection(r, packet.Confirmed|packet.SeenReply)
			resetConnection(o)
		}, "kernel:    no such connection"},
		"in before out":   {captured("eth1", "eth0"), "kernel: 7 of 7 steps agree"},
		"out before in":   {captured("eth0", "eth1"), "kernel: 6 of 7 steps agree"},
		"another outcome": {otherOutcome, "kernel: 6 of 6 steps agree"},
	} {
		t.Run(name, func(t *testing.T) {
			result, o := handMade()
			c.change(result, o)
			r := proof.Compare(result, o)
			if got := r.String(); !strings.Contains(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			if name == "another outcome" && r.Outcome != 1 {
				t.Errorf("outcome %d", r.Outcome)
			}
			if agrees := r.First == nil; agrees != (r.Steps == r.Agreed) {
				t.Errorf("%d of %d, first difference %v", r.Agreed, r.Steps, r.First)
			}
		})
	}
}

// unreadRule has the prediction end at the rule of POSTROUTING with a number, which could not be read.
func unreadRule(r *walk.Result, number int) {
	o := &r.Outcomes[0]
	o.There, o.End.Kind = o.There[:5], walk.Undecided
	v := o.There[4].Visit
	v.Rule = &netfilter.Rule{Number: number, Statements: []netfilter.Statement{&netfilter.UnreadEffect{Why: "nft: exit status 1"}}}
	v.Verdict = netfilter.Verdict{Kind: netfilter.Undecided}
}

// repeatTrace has the packet meet all rules of its own host a second time; the last ones another way.
func repeatTrace(o *proof.Observation) {
	h := o.Hosts["a"]
	h.Trace = append(h.Trace, h.Trace[0], h.Trace[3])
}

// onLoopback has the packet come back to its own host.
func onLoopback(r *walk.Result, o *proof.Observation) {
	for i := range r.Outcomes[0].There {
		if s := &r.Outcomes[0].There[i]; s.Stage == walk.Transmit {
			s.Stage, s.Packet.Local = walk.Received, packet.Local{In: "lo"}
		}
	}
	p := &o.Hosts["a"].Packets[0]
	p.Link, p.Out = "lo", false
}

// captured makes the packet one that comes in by eth1, where it is captured in this order.
func captured(links ...string) func(*walk.Result, *proof.Observation) {
	return func(r *walk.Result, o *proof.Observation) {
		o0 := &r.Outcomes[0]
		in := o0.There[0].Packet
		in.Local = packet.Local{In: "eth1"}
		o0.There[0] = walk.Step{Host: "a", Stage: walk.Received, Packet: in}
		h := o.Hosts["a"]
		at := map[string]witness.CapturedPacket{"eth0": h.Packets[0], "eth1": {Link: "eth1", Packet: in, Transport: h.Packets[0].Transport}}
		h.Packets = nil
		for _, l := range links {
			h.Packets = append(h.Packets, at[l])
		}
	}
}

// keepConnection has the walk predict a connection that the kernel does not have.
func keepConnection(r *walk.Result, status packet.Status) {
	p := &r.Outcomes[0].There[0].Packet
	p.Track.Flow = &packet.Flow{Original: p.Tuple, Reply: p.Tuple.Reply(), Status: status}
}

// resetConnection has the sender's host capture a reset of it.
func resetConnection(o *proof.Observation) {
	reset := syn("10.0.0.1:4000", "10.0.0.2:80")
	reset.TCPFlags = packet.RST
	h := o.Hosts["a"]
	h.Packets = append(h.Packets, witness.CapturedPacket{Link: "eth0", Out: true, Packet: reset, Transport: make([]byte, 20)})
}

// otherOutcome puts two wrong outcomes around the right one: one that parts early, one that parts late.
func otherOutcome(r *walk.Result, _ *proof.Observation) {
	change := func(step int) walk.Outcome {
		other, _ := handMade()
		other.Outcomes[0].There[step].Visit.Rule.Number = 77
		return other.Outcomes[0]
	}
	r.Outcomes = []walk.Outcome{change(1), r.Outcomes[0], change(4)}
}
