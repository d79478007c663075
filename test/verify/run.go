package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// Result is what came of a world.
type Result struct {
	Account
	Failures []Failure
	Excused  []string // packets that were sent and did not agree, and why that is not counted as a failure

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

// FailureKind tells failures apart, so that a shrunk world fails as the first did.
type FailureKind string

// The kinds.
const (
	Steps       FailureKind = "steps"       // prediction and kernel part at a step
	NoAnswer    FailureKind = "error"       // there is no prediction, or nothing to compare it with
	Assumed     FailureKind = "assumed"     // the model had to assume what the snapshot has
	Probability FailureKind = "probability" // the kernel did what cannot happen
	Unknown     FailureKind = "unknown"     // the model does not know what it should
	Nothing     FailureKind = "nothing"     // no packet of the world was compared
)

// Failure is a packet about which model and kernel disagree.
type Failure struct {
	Packet int // its place in the world, from 0; -1 for the world as a whole
	Line   string
	Kind   FailureKind
	Host   string // where they part; "" where it is not one place
	Text   string
	Walk   string // the predicted outcome, step by step
}

// Report returns the failure in full, with the walk.
func (f *Failure) Report() string {
	return fmt.Sprintf("packet %d, %s: %s: %s\n%s", f.Packet, f.Line, f.Kind, f.Text, f.Walk)
}

// alike reports whether two failures are of one kind, at the same host.
func (f *Failure) alike(g *Failure) bool { return f.Kind == g.Kind && f.Host == g.Host }

// Run makes the world below dir, and sends its packets one after the other. A packet is one step in the life of the world: each is
// predicted out of what those before it left behind. The error is a worldError where the world cannot be made.
func Run(ctx context.Context, dir string, w *World) (Result, error) { return run(ctx, dir, w, nil) }

// run does what Run does, with a model that reads a changed state: see built.tamper.
func run(ctx context.Context, dir string, w *World, tamper func(string) string) (Result, error) {
	result := Result{Account: newAccount(), errors: map[string]int{}}
	b, err := build(ctx, dir, w)
	if refused := (*worldError)(nil); errors.As(err, &refused) {
		result.Fates[Unmade] = len(w.Packets)
	}
	if err != nil {
		return result, err
	}
	b.tamper = tamper
	for i, line := range w.Packets {
		fate, failure, err := b.send(ctx, line, &result)
		if err != nil {
			return result, errors.Join(fmt.Errorf("packet %q: %w", line, err), b.close())
		}
		result.Fates[fate]++
		if failure != nil {
			failure.Packet, failure.Line = i, line
		}
		switch {
		case fate == Disagreed:
			result.Failures = append(result.Failures, *failure)
		case failure != nil:
			result.Excused = append(result.Excused, fmt.Sprintf("%s: %s", fate, failure.Report()))
		}
	}
	if result.Compared() == 0 {
		result.Failures = append(result.Failures, Failure{
			Packet: -1, Kind: Nothing, Text: "no packet of the world was compared: " + counts(result.Fates),
		})
	}
	return result, b.close()
}

// packetTimeout bounds one packet: prediction, sending and comparison. None comes near it, unless the machine is busy: at a load of 30 on
// two cores some packets took more than three minutes.
const packetTimeout = 15 * time.Minute

// send predicts, sends and compares one packet. The error is that of a packet that cannot be read, or of an ended ctx.
func (b *builtWorld) send(ctx context.Context, line string, result *Result) (Fate, *Failure, error) {
	host, p, err := parsePacket(line)
	if err != nil {
		return "", nil, err
	}
	limited, cancel := context.WithTimeout(ctx, packetTimeout)
	defer cancel()
	before := tableFulls()
	_, report, err := proof.Once(limited, b.source(limited), b.place, requestOf(host, p), true)
	switch {
	case ctx.Err() != nil:
		return "", nil, ctx.Err()
	case errors.Is(err, witness.ErrUnsendable):
		return Unsendable, nil, nil
	case err != nil:
		return Disagreed, &Failure{Kind: NoAnswer, Text: err.Error()}, nil
	case report.NotSent != "":
		return Endless, nil, nil
	}
	fate, failure := result.judge(&report)
	if fate == Disagreed && failure.Kind == Steps && asksNeighbour(report.Way) && tableFulls() != before {
		fate = TableFull
	}
	if failure != nil {
		if report.Unanswered {
			b.mu.Lock()
			failure.Text += fmt.Sprintf("\nat %s the programs had answered: %q", time.Now().Format(time.StampMilli), b.answers)
			b.mu.Unlock()
		}
		failure.Walk = WalkText(report.Way)
		if report.First != nil {
			failure.Host = report.First.Host
		}
	}
	return fate, failure, nil
}

// asksNeighbour reports whether a host asked for a neighbour on a packet's way.
func asksNeighbour(o *walk.Outcome) bool {
	return slices.ContainsFunc(slices.Concat(o.There, o.Back), func(s walk.Step) bool { return s.Resolve != nil && s.Resolve.By == "asked" })
}

// tableFulls returns how often the kernel had no room for another neighbour, and so dropped a packet. All namespaces share the tables of IPv4 and
// IPv6 (net/core/neighbour.c, neigh_alloc and neigh_stat_seq_show). It is 0 where this namespace may not read it.
func tableFulls() (n uint64) {
	for _, table := range [...]string{"arp_cache", "ndisc_cache"} {
		text, _ := os.ReadFile("/proc/net/stat/" + table)
		column := -1
		for line := range strings.Lines(string(text)) { // one for each processor, below the columns' names
			words := strings.Fields(line)
			if column < 0 {
				column = slices.Index(words, "table_fulls")
			} else if column < len(words) {
				count, _ := strconv.ParseUint(words[column], 16, 64)
				n += count
			}
		}
	}
	return n
}

// enumerated is how many outcomes of a packet are compared; among more, the one that the kernel took is looked for choice by choice.
const enumerated = 512

// requestOf returns the walk of a packet. Answers to SCTP depend on what the kernel has of it, which no snapshot tells.
func requestOf(host string, p packet.Packet) walk.Request {
	r := walk.Request{
		Host: host, Packet: p, Echoes: true, Forwarded: p.In != "", Arrives: p.In, OneWay: p.Protocol == packet.SCTP, MaxOutcomes: enumerated,
	}
	r.Packet.In, r.Packet.HasOwner = "", !r.Forwarded // the senders here are root's
	return r
}

// judge finds out what became of a packet that was sent.
func (r *Result) judge(report *proof.Report) (Fate, *Failure) {
	predicted, outcome := report.Pinned, report.Way
	r.Steps += report.Steps
	r.Repeated += report.Repeated
	r.Ends[outcome.End.Kind]++
	silenced := r.silenced(&outcome.End)
	if open(predicted) {
		r.Open++
	}
	failure := differs(report)
	switch {
	case failure == nil && len(report.Uncertain) > 0:
		return Uncertain, &Failure{Kind: Steps, Text: strings.Join(report.Uncertain, "; ")}
	case failure == nil:
		return Agreed, nil
	case failure.Kind == Steps && report.Abandoned:
		return TooMany, failure
	case failure.Kind == Steps && silenced && report.First != nil && report.First.Back:
		return ErrorLimit, failure
	case report.Undecided && notUnderstood(outcome):
		return NotUnderstood, failure
	}
	return Disagreed, failure
}

// assumed returns the model's assumptions about the snapshot. It leaves out the order of chains that the kernel did not take the packet
// through, which matters to other outcomes only. The kernel's trace shows the order of those that it did.
func assumed(predicted *walk.Result, taken *walk.Outcome) []walk.Assumption {
	type chain struct {
		host string
		walk.ChainRef
	}
	visited := map[chain]bool{}
	for _, s := range slices.Concat(taken.There, taken.Back) {
		if s.Visit != nil {
			visited[chain{s.Host, walk.Ref(s.Visit.Chain)}] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(predicted.Assumed), func(a walk.Assumption) bool {
		return a.Tied[0].Chain != "" && !visited[chain{a.Host, a.Tied[0]}] && !visited[chain{a.Host, a.Tied[1]}]
	})
}

// differs tells what is wrong with a prediction.
func differs(report *proof.Report) *Failure {
	predicted, outcome := report.Pinned, report.Way
	traced := *report
	traced.NotTraced = 0 // what such rules do to the packet and where it goes is compared all the same
	switch {
	case !traced.Complete():
		return &Failure{Kind: Steps, Text: report.String()}
	case report.Steps == 0:
		return &Failure{Kind: NoAnswer, Text: "nothing was compared"}
	case len(assumed(predicted, outcome)) > 0:
		return &Failure{Kind: Assumed, Text: fmt.Sprintf("the model had to assume: %v", assumed(predicted, outcome))}
	case outcome.Probability != nil && outcome.Probability.Sign() <= 0:
		return &Failure{Kind: Probability, Text: "the kernel did what has the probability " + outcome.Probability.String()}
	}
	if why := unknown(predicted, outcome); why != "" {
		return &Failure{Kind: Unknown, Text: why}
	}
	return nil
}

// open reports whether a rule that the model does not understand is on one of the ways.
func open(predicted *walk.Result) bool {
	return slices.ContainsFunc(predicted.Outcomes, func(o walk.Outcome) bool {
		asks := func(c walk.Decision) bool { return c.Kind == netfilter.Unknown && beyond(c.Rule) }
		return notUnderstood(&o) || slices.ContainsFunc(o.Choices, asks)
	})
}

// beyond tells of a rule that the model does not understand.
func beyond(r *netfilter.Rule) bool { return r != nil && !r.Understood() }

// notUnderstood reports whether an outcome ends undecided at a rule that the model does not understand.
func notUnderstood(o *walk.Outcome) bool {
	return slices.ContainsFunc(slices.Concat(o.There, o.Back), func(s walk.Step) bool {
		return s.Visit != nil && s.Visit.Verdict.Kind == netfilter.Undecided && beyond(s.Visit.Rule)
	})
}

// unknown tells of what the model does not know though it should. It need not know what a rule does that it does not understand, what hangs
// on a port that a translation would have chosen by chance, had the kernel taken that way, and whether a device has computed the checksum of a
// packet that comes from outside.
func unknown(predicted *walk.Result, taken *walk.Outcome) string {
	for i := range predicted.Outcomes {
		o := &predicted.Outcomes[i]
		for _, c := range o.Choices {
			if _, sum := c.About.(walk.SpoiledSum); sum {
				continue
			}
			if c.Kind == netfilter.Unknown && !beyond(c.Rule) && (o == taken || !byChance(o, c.Step)) {
				return fmt.Sprintf("unknown to the model: %s: %s", c.What, ruleText(c.Rule))
			}
		}
		for _, end := range []*walk.End{&o.End, o.BackEnd} {
			switch {
			case end == nil:
			case end.Kind == walk.Undecided && !notUnderstood(o):
				return "the model does not know how it ends: " + end.Why
			case end.Kind == walk.Left:
				return "the model knows no other end of " + end.Link
			}
		}
	}
	return ""
}

// byChance reports whether a packet has a port that the kernel chooses by chance when it comes to a step.
func byChance(o *walk.Outcome, step int) bool {
	t := &slices.Concat(o.There, o.Back)[max(step-1, 0)].Packet
	return !t.SourcePort.Known() || !t.DestinationPort.Known()
}
