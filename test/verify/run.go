package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// Unsupported is the comment of rules that the model need not understand. What another rule makes unknown is a failure.
const Unsupported = "unsupported"

// Result is what came of a world.
type Result struct {
	Packets  int // sent
	Steps    int // compared
	Unknown  int // packets for which a rule marked Unsupported opened several outcomes
	TooMany  int // packets that go round, with more outcomes than the model enumerated or found along with the kernel: not compared
	Endless  int // packets that were not sent, because they could go round for ever, and are not among Packets
	Failures []Failure
	// Passing are failures that another run of the same world did not have: choices fell otherwise, or the machine was too busy to get
	// everything in time.
	Passing []Failure
	Ends    map[walk.EndKind]int // of the packets, as the kernel had it

	errors map[string]int // told by routers, by router and receiver
}

// errorBurst is how many errors about routes a router tells one receiver in a row, at one a second after that (net/ipv4/route.c: ip_error,
// ip_rt_error_burst). No snapshot shows how many there were.
const errorBurst = 5

// silenced tells of packets whose router may have told their sender of too many errors before.
func (r *Result) silenced(end *walk.End) bool {
	if end.Kind != walk.Rejected || end.Packet.IsIPv6() {
		return false
	}
	key := end.Host + " " + end.Packet.Source.String()
	r.errors[key]++
	return r.errors[key] > errorBurst
}

// Failure is a packet about which model and kernel disagree.
type Failure struct {
	Packet int // its place in the world, from 0
	Line   string
	// Kind tells failures apart, so that a shrunk world fails as the first did: "steps", "unknown", "assumed", "error", "answer".
	Kind string
	Text string
	Walk string // the predicted outcome, step by step
}

// Run makes the world below dir, and sends its packets one after the other. A packet is one step in the life of the world: each is
// predicted out of what those before it left behind. The error is errWorld where the world cannot be made.
func Run(ctx context.Context, dir string, w *World) (Result, error) {
	result := Result{Ends: map[walk.EndKind]int{}, errors: map[string]int{}}
	b, err := build(ctx, dir, w)
	if err != nil {
		return result, err
	}
	for i, line := range w.Packets {
		failure, err := b.send(ctx, line, &result)
		if err != nil {
			return result, errors.Join(fmt.Errorf("packet %q: %w", line, err), b.close())
		}
		if failure != nil {
			failure.Packet, failure.Line = i, line
			result.Failures = append(result.Failures, *failure)
		}
	}
	return result, b.close()
}

// RunTwice is Run, but a failure counts only if one like it comes again when the world is made once more.
func RunTwice(ctx context.Context, dir string, w *World) (Result, error) {
	first, err := Run(ctx, dir, w)
	if err != nil || len(first.Failures) == 0 {
		return first, err
	}
	var kept, passing []Failure
	for range 2 {
		again, err := Run(ctx, dir, w)
		if err != nil {
			return first, err
		}
		kept, passing = nil, nil
		for _, f := range first.Failures {
			if slices.ContainsFunc(again.Failures, func(g Failure) bool { return f.alike(&g) }) {
				kept = append(kept, f)
			} else {
				passing = append(passing, f)
			}
		}
		if len(kept) > 0 {
			break
		}
	}
	first.Failures, first.Passing = kept, passing
	return first, nil
}

// packetTimeout bounds one packet: prediction, sending and comparison. None comes near it.
const packetTimeout = 20 * time.Second

func (b *built) send(ctx context.Context, line string, result *Result) (*Failure, error) {
	host, p, err := parsePacket(line)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errWorld, err)
	}
	ctx, cancel := context.WithTimeout(ctx, packetTimeout)
	defer cancel()
	source := b.source(ctx)
	predicted, report, err := proof.Live(ctx, source, b.namespace, walk.Request{Host: host, Packet: p})
	if predicted == nil && err != nil {
		return nil, nil // a packet that no socket can send
	}
	if report.NotSent != "" {
		result.Endless++
		return nil, nil
	}
	result.Packets++
	if err != nil {
		return &Failure{Kind: "error", Text: err.Error()}, nil
	}
	result.Steps += report.Steps
	outcome := &predicted.Outcomes[report.Outcome]
	result.Ends[outcome.End.Kind]++
	f := judge(predicted, &report)
	if f != nil && predicted.More {
		result.TooMany++
		return nil, nil
	}
	if result.silenced(&outcome.End) {
		return nil, nil
	}
	if f != nil {
		f.Walk = WalkText(outcome)
	}
	if excused(predicted) {
		result.Unknown++
	}
	return f, nil
}

// judge tells what is wrong with a prediction.
func judge(predicted *walk.Result, report *proof.Report) *Failure {
	outcome := &predicted.Outcomes[report.Outcome]
	switch {
	case report.First == nil && report.Undecided && undecidedByChance(outcome):
		return nil
	case report.First != nil && outcome.End.Kind == walk.Undecided && excused(predicted):
		return nil // the model said so
	case !report.Complete():
		return &Failure{Kind: "steps", Text: report.String()}
	case report.Steps == 0:
		return &Failure{Kind: "steps", Text: "nothing was compared"}
	case len(assumed(predicted)) > 0:
		return &Failure{Kind: "assumed", Text: fmt.Sprintf("the model had to assume: %v", assumed(predicted))}
	case outcome.Probability != nil && outcome.Probability.Sign() <= 0:
		return &Failure{Kind: "probability", Text: "the kernel did what has the probability " + outcome.Probability.String()}
	}
	if why := unexcused(predicted); why != "" {
		return &Failure{Kind: "unknown", Text: why}
	}
	return nil
}

// assumed are the things that the model did not know, other than what nobody reads yet.
func assumed(predicted *walk.Result) []walk.Assumption {
	return slices.DeleteFunc(predicted.Assumed, func(a walk.Assumption) bool { return strings.Contains(a.What, "this version does not read it yet") })
}

func marked(r *netfilter.Rule) bool {
	return r != nil && (r.Comment == Unsupported || strings.Contains(r.Text, Unsupported))
}

// excused tells whether a rule that need not be understood was met.
func excused(predicted *walk.Result) bool {
	for _, o := range predicted.Outcomes {
		for _, c := range o.Choices {
			if c.Kind == netfilter.Unknown && marked(c.Rule) {
				return true
			}
		}
		for _, s := range o.There {
			if s.Visit != nil && s.Visit.Verdict.Kind == netfilter.Undecided && marked(s.Visit.Rule) {
				return true
			}
		}
	}
	return false
}

// unexcused tells of what the model does not know though it should.
func unexcused(predicted *walk.Result) string {
	for _, o := range predicted.Outcomes {
		for _, c := range o.Choices {
			if c.Kind == netfilter.Unknown && !marked(c.Rule) && !chancePort(&o, c.What) {
				return fmt.Sprintf("unknown to the model: %s: %s", c.What, ruleText(c.Rule))
			}
		}
		for _, end := range []*walk.End{&o.End, o.BackEnd} {
			if end != nil && end.Kind == walk.Undecided && !excused(predicted) {
				if undecidedByChance(&o) {
					continue
				}
				return "the model does not know how it ends: " + end.Why
			}
			if end != nil && end.Kind == walk.Left {
				return "the model knows no other end of " + end.Link
			}
		}
	}
	return ""
}

// chancePort tells of a test for a port that the kernel takes by chance (masquerade --random-fully): both outcomes are predicted, and the
// kernel's is one of them.
func chancePort(o *walk.Outcome, test string) bool {
	return strings.Contains(test, "port") && slices.ContainsFunc(slices.Concat(o.There, o.Back), func(s walk.Step) bool {
		return isRange(s.Packet.SourcePort) || isRange(s.Packet.DestinationPort)
	})
}

// undecidedByChance tells of a packet whose route depends on a port that the kernel takes by chance.
func undecidedByChance(o *walk.Outcome) bool {
	end := &o.End
	if o.BackEnd != nil {
		end = o.BackEnd
	}
	return end.Kind == walk.Undecided && strings.Contains(end.Why, "port") && (isRange(end.Packet.SourcePort) || isRange(end.Packet.DestinationPort))
}

func isRange(p packet.Port) bool {
	low, high := p.Span()
	return low != high
}

func ruleText(r *netfilter.Rule) string {
	if r == nil {
		return "no rule"
	}
	return r.Text
}

// WalkText is an outcome, a step a line.
func WalkText(o *walk.Outcome) string {
	var b strings.Builder
	for _, way := range [][]walk.Step{o.There, o.Back} {
		for i := range way {
			stepText(&b, &way[i])
		}
		if len(way) > 0 {
			b.WriteString("--\n")
		}
	}
	return b.String()
}

func stepText(b *strings.Builder, s *walk.Step) {
	p := &s.Packet
	fmt.Fprintf(b, "%s %s", s.Host, s.Stage)
	switch {
	case s.Visit != nil:
		fmt.Fprintf(b, " %s %s: %s", s.Visit.Chain.Table.Family, s.Visit.Chain.Ref(s.Visit.Rule), s.Visit.Verdict.Kind)
		if s.Visit.Rule != nil {
			fmt.Fprintf(b, ": %s", s.Visit.Rule.Text)
		}
		for _, c := range s.Changes {
			fmt.Fprintf(b, " [%s %s → %s]", c.Field, c.From, c.To)
		}
	case s.Route != nil:
		fmt.Fprintf(b, " %s dev %s via %s src %s", s.Route.Type, s.Route.Link, s.Route.Gateway, s.Route.Source)
	case s.Bridge != nil:
		fmt.Fprintf(b, " %s → %v", s.Bridge.Bridge, s.Bridge.Ports)
	case s.Resolve != nil:
		fmt.Fprintf(b, " %s is %s by %s", s.Resolve.Address, s.Resolve.MAC, s.Resolve.By)
	default:
		fmt.Fprintf(b, " %s>%s %s ttl %d %s", p.In, p.Out, tupleText(p), p.TTL, p.EtherDestination)
		if p.Mark != 0 {
			fmt.Fprintf(b, " mark %#x", p.Mark)
		}
	}
	if s.Why != "" {
		fmt.Fprintf(b, " (%s)", s.Why)
	}
	b.WriteByte('\n')
}

func tupleText(p *packet.Packet) string {
	text := fmt.Sprintf("%s %s > %s", p.Protocol, p.SourceEnd(), p.DestinationEnd())
	if p.About != nil {
		text += fmt.Sprintf(" type %d code %d about %s", p.Type, p.Code, p.About)
	}
	return text
}
