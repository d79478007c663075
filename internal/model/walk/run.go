package walk

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// stage is a place of the packet's way through the kernel: it takes the packet as it comes there, and returns how it passed.
type stage func(transit) passage

// passage is the packet's way through one stage: the packet as it left the stage, its steps there, and where it goes from there. It does
// not change after the stage has returned it.
type passage struct {
	transit
	next stage // nil where its way ends
	end  *End  // how, where it does
	err  error // a host's state cannot be had
}

// transit is a packet in one machine: its present form, and what the kernel has found out there about its way. It is a value, and each stage
// changes its own copy. Through run, a stage changes what all later stages see: choices, facts of links, and machines.
type transit struct {
	run       *run // the execution that it is part of, shared by all its stages
	m         *machine
	p         packet.Packet
	route     *fib.Answer // found before the usual place: local output, or a bridge that routed a translated packet
	bridge    *bridgeInfo // set while br_netfilter has the frame
	others    *flood      // the copies that follow a flooded frame, until it leaves
	loopback  bool        // it was sent to the machine itself
	inReplyTo *Step       // of an answer: the first step of what it answers; nil for the request
	steps     []Step      // that it made in this stage,
	before    int         // and how many there were before, those of both ways counted
}

// maxStages bounds a packet's way: far more than any real one, and little enough to end at once. A ring of routers that restore the TTL
// has no other end. maxStagesOfAll bounds the ways of the packet, its answer and their copies together: copies that go round are copied.
const (
	maxStages      = 1 << 12 // 255 routers and their bridges
	maxStagesOfAll = 4 * maxStages
)

// run is one execution of a walk: every choice has one answer.
type run struct {
	*walker
	prefix   []int // answers to the first choices
	choices  []Decision
	answers  map[question][]pastAnswer // to questions that are asked once
	links    map[linkEnd]*linkFacts
	machines map[string]*machine
	// forwarder is the link that the request left by, where that leads to a forwarder.
	forwarder string
	unshown   []MissingState // of the way that is walked
	stages    int            // so far

	context netfilter.Context // used anew for every chain
	visits  []netfilter.Visit // of all chains so far; steps point into it
	flow    *packet.Flow      // the last one that a step has
}

func newRun(w *walker, prefix []int) *run {
	return &run{walker: w, prefix: prefix, machines: make(map[string]*machine, 8)}
}

// walk sends the request and, where something answers, the reply.
func (r *run) walk() (Outcome, error) {
	start, err := r.enter(r.req.Host, r.req.Packet)
	if err != nil {
		return Outcome{}, err
	}
	first := transit.send
	if r.req.Forwarded {
		first = transit.arrive
	}
	there, err := runStages(start, first)
	if err != nil {
		return Outcome{}, err
	}
	o := Outcome{There: there.steps, End: there.end, Unshown: r.unshown}
	r.unshown = nil
	if !r.req.OneWay {
		if reply, answer := there.answer(); answer != nil {
			back, err := runStages(reply, answer)
			if err != nil {
				return Outcome{}, err
			}
			o.Back, o.BackEnd, o.BackUnshown = back.steps, &back.end, r.unshown
		}
	}
	o.Choices, o.Probability = r.choices, probability(r.choices)
	return o, nil
}

// notShown notes a part of a host's state, each once.
func (r *run) notShown(u MissingState) {
	if !slices.Contains(r.unshown, u) {
		r.unshown = append(r.unshown, u)
	}
}

// route is a packet's way from where it starts to where it ends.
type route struct {
	steps []Step
	last  transit // where it ended
	end   End
}

// runStages takes a packet from stage to stage until its way ends.
func runStages(t transit, s stage) (route, error) {
	steps := make([]Step, 0, 32)
	for n := 0; ; n++ {
		if t.run.stages++; n == maxStages || t.run.stages > maxStagesOfAll {
			why := fmt.Sprintf("still on its way after %d stages", n)
			if n < maxStages {
				why = fmt.Sprintf("still on its way, with its copies, after %d stages", maxStagesOfAll)
			}
			s = func(t transit) passage { return t.finish(Looped, why) }
		}
		if end := t.needs(always...); end != nil {
			s = func(t transit) passage { return t.over(end) }
		}
		p := s(t)
		if p.err != nil {
			return route{}, p.err
		}
		steps = append(steps, p.steps...)
		if p.end != nil {
			return route{slices.Clip(steps), p.transit, *p.end}, nil
		}
		t, s = p.transit, p.next
		t.steps, t.before = nil, t.before+len(p.steps)
	}
}

// enter returns the transit of a packet that gets to a machine.
func (r *run) enter(name string, p packet.Packet) (transit, error) {
	h, err := r.host(name)
	if err != nil {
		return transit{}, err
	}
	m := r.machine(h)
	m.sayMissing(p.IsIPv6())
	return transit{run: r, m: m, p: p}, nil
}

// to ends a stage; the packet goes on to the next one.
func (t transit) to(next stage) passage { return passage{transit: t, next: next} }

// over ends the packet's way.
func (t transit) over(end *End) passage {
	t.p = end.Packet
	t.note(Step{Stage: Ended, Why: end.Why})
	end.Packet = t.steps[len(t.steps)-1].Packet
	return passage{transit: t, end: end}
}

// end returns how the packet's way ends here.
func (t *transit) end(kind EndKind, why string) *End {
	return &End{Kind: kind, Host: t.m.Name, Packet: t.p, Why: why}
}

// finish ends the packet's way here.
func (t transit) finish(kind EndKind, why string) passage { return t.over(t.end(kind, why)) }

// note keeps a step.
func (t *transit) note(s Step) { t.steps = append(t.steps, t.record(s)) }

// record completes a step: the packet as it is now goes with it. Its flow goes on changing; a step has a copy, which does not.
func (t *transit) record(s Step) Step {
	t.run.steps++
	s.Host, s.Packet = t.m.Name, t.p
	f := &s.Packet.Track.Flow
	if *f == nil {
		return s
	}
	if t.run.flow == nil || *t.run.flow != **f {
		copied := **f
		t.run.flow = &copied
	}
	*f = t.run.flow
	return s
}

// question is what a choice is remembered by, beside what it is about. The answer to the request is another packet: what was found of the
// request need not hold for it.
type question struct {
	host      *machine
	kind      reflect.Type // of what it is about
	rule      *netfilter.Rule
	tuple     packet.Tuple
	answering bool
}

// pastAnswer is an answer to a question about something: the rule's statement and the values that it asks about.
type pastAnswer struct {
	about  any
	answer int
}

// Choose implements netfilter.Chooser: the answer that the prefix gives, and after it the first possible one. What hashes a flow answers
// alike for all of its packets, and what is not known stays what it was taken to be.
func (t *transit) Choose(c netfilter.Choice) int {
	lasting := c.Kind == netfilter.Hash || c.Kind == netfilter.Unknown
	key := question{host: t.m, kind: reflect.TypeOf(c.About), answering: t.inReplyTo != nil}
	if c.Kind == netfilter.Hash {
		key.rule, key.tuple = c.Rule, t.p.Tuple
	}
	if u, ok := c.About.(*netfilter.UnknownTest); ok && u.Existence {
		key.rule, key.answering = c.Rule, false
	}
	if lasting {
		if i := slices.IndexFunc(t.run.answers[key], func(q pastAnswer) bool { return reflect.DeepEqual(q.about, c.About) }); i >= 0 {
			return t.run.answers[key][i].answer
		}
	}
	if c.Interface != nil {
		if known, holds := t.implied(c.Interface); known {
			return answerOf(holds)
		}
	}
	answer := max(nextOption(c.Options, 0), 0)
	if at := len(t.run.choices); at < len(t.run.prefix) {
		answer = min(t.run.prefix[at], len(c.Options)-1)
	}
	if lasting {
		if t.run.answers == nil {
			t.run.answers = map[question][]pastAnswer{}
		}
		t.run.answers[key] = append(t.run.answers[key], pastAnswer{c.About, answer})
	}
	if c.Interface != nil {
		t.facts(c.Interface).learn(c.Interface.Name, (answer == 0) != c.Interface.Not)
	}
	running := max(len(t.run.context.Visits)-len(t.run.visits), 0) // rules of the chain that runs, which are steps when it has run
	t.run.choices = append(t.run.choices, Decision{Choice: c, Host: t.m.Name, Answer: answer, Step: t.before + len(t.steps) + running})
	return answer
}

// choose asks for something that no rule decides.
func (t *transit) choose(kind netfilter.ChoiceKind, about fmt.Stringer, options []netfilter.Option) int {
	if len(options) == 1 {
		return 0
	}
	return t.Choose(netfilter.Choice{Kind: kind, About: about, What: about.String(), Options: options})
}

// decide chooses between yes and no where the answer is unknown, once for a machine and a question.
func (t *transit) decide(about fmt.Stringer, yes, no string) bool {
	answer, asked := t.m.decided[about]
	if !asked {
		answer = t.choose(netfilter.Unknown, about, []netfilter.Option{{Label: yes}, {Label: no}}) == 0
		if t.m.decided == nil {
			t.m.decided = map[fmt.Stringer]bool{}
		}
		t.m.decided[about] = answer
	}
	return answer
}

// portIn decides what a policy rule asks of a port that the kernel has chosen by chance.
func (t *transit) portIn(test fib.PortTest) bool { return t.decide(test, "it is", "it is not") }

// portOf asks behind which port of a bridge a destination is.
type portOf struct {
	bridge      string
	destination netip.Addr
}

func (p portOf) String() string {
	return "port of " + p.bridge + " behind which " + p.destination.String() + " is"
}

// nextHopTo asks for one of several next hops.
type nextHopTo struct{ destination netip.Addr }

func (n nextHopTo) String() string { return "next hop to " + n.destination.String() }
