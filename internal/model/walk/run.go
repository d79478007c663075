package walk

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// stage is a place of the packet's way through the kernel: it does its work and names the next one; nil at the end.
type stage func(*run) stage

// maxStages bounds a packet's way: far more than any real one, and little enough to end at once. A ring of routers that restore the TTL
// has no other end.
const maxStages = 1 << 12 // 255 routers and their bridges

// run is one execution of a walk: every choice has one answer.
type run struct {
	*walker
	prefix   []int // answers to the first choices
	choices  []Chosen
	answers  map[question][]remembered // to questions that are asked once
	links    map[linkEnd]*linkFacts
	machines map[string]*machine

	m     *machine      // where the packet is
	p     packet.Packet // as it is now
	via   via           // what the kernel has already found out about its way through this machine
	steps []Step
	end   *End
	err   error // a host's state cannot be had
	// answering is set while the reply is walked.
	answering bool

	context netfilter.Context // used anew for every chain
	trail   []netfilter.Visit // of all chains so far; steps point into it
	flow    *packet.Flow      // the last one that a step has
}

// via is what belongs to a packet on its way through one machine.
type via struct {
	route *decision // found before the usual place: local output, or a bridge that routed a translated packet
	// bridge is set while br_netfilter has the frame (kernel: nf_bridge_info).
	bridge   *bridged
	loopback bool // it was sent to the machine itself
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

// remembered is an answer to a question about something: the rule's statement and the values that it asks about.
type remembered struct {
	about  any
	answer int
}

func newRun(w *walker, prefix []int) *run {
	return &run{walker: w, prefix: prefix, machines: make(map[string]*machine, 8), steps: make([]Step, 0, 32)}
}

// walk sends the request and, where something answers, the reply.
func (r *run) walk() (Outcome, error) {
	o := Outcome{}
	first := (*run).send
	if r.req.Forwarded {
		first = (*run).arrive
	}
	r.p = r.req.Packet
	r.enter(r.req.Host)
	o.There, o.End = r.follow(first)
	if r.err == nil && !r.req.OneWay {
		if answer := r.answer(&o.End); answer != nil {
			var end End
			o.Back, end = r.follow(answer)
			o.BackEnd = &end
		}
	}
	o.Choices, o.Probability = r.choices, probability(r.choices)
	return o, r.err
}

// follow goes from stage to stage until the packet's way ends.
func (r *run) follow(s stage) ([]Step, End) {
	r.end = nil
	from := len(r.steps)
	for n := 0; s != nil && r.err == nil; n++ {
		if n == maxStages {
			r.finish(Looped, fmt.Sprintf("still on its way after %d stages", n))
			break
		}
		s = s(r)
	}
	if r.end == nil {
		r.end = &End{Kind: Undecided, Why: fmt.Sprint(r.err)}
	}
	return r.steps[from:len(r.steps):len(r.steps)], *r.end
}

// enter moves the packet to a machine.
func (r *run) enter(name string) {
	h, err := r.host(name)
	if err != nil {
		r.err = err
		return
	}
	r.m, r.via = r.machine(h), via{}
	r.m.sayMissing()
}

// machine is a host in this run.
func (r *run) machine(h *snapshot.Host) *machine {
	m, ok := r.machines[h.Name]
	if !ok {
		m = newMachine(r, h)
		r.machines[h.Name] = m
	}
	return m
}

// step notes what happened; the packet as it is now goes with it.
func (r *run) step(s Step) {
	s.Host, s.Packet, s.Flow = r.m.Name, r.p, r.flowNow()
	r.steps = append(r.steps, s)
}

// flowNow is a copy of the packet's flow: the flow goes on changing, a step does not.
func (r *run) flowNow() *packet.Flow {
	f := r.p.Track.Flow
	if f == nil {
		return nil
	}
	if r.flow == nil || *r.flow != *f {
		copied := *f
		r.flow = &copied
	}
	return r.flow
}

// finish ends the packet's way here.
func (r *run) finish(kind EndKind, why string) stage {
	r.end = &End{Kind: kind, Host: r.m.Name, Packet: r.p, Why: why}
	r.step(Step{Stage: Ended, Why: why})
	return nil
}

// Choose implements netfilter.Chooser: the answer that the prefix gives, and after it the first possible one. What hashes a flow answers
// alike for all of its packets, and what is not known stays what it was taken to be.
func (r *run) Choose(c netfilter.Choice) int {
	lasting := c.Kind == netfilter.Hash || c.Kind == netfilter.Unknown
	key := question{host: r.m, kind: reflect.TypeOf(c.About), answering: r.answering}
	if c.Kind == netfilter.Hash {
		key.rule, key.tuple = c.Rule, r.p.Tuple
	}
	if lasting {
		if i := slices.IndexFunc(r.answers[key], func(q remembered) bool { return reflect.DeepEqual(q.about, c.About) }); i >= 0 {
			return r.answers[key][i].answer
		}
	}
	if c.Interface != nil {
		if known, holds := r.implied(c.Interface); known {
			return answerOf(holds)
		}
	}
	answer := max(nextOption(c.Options, 0), 0)
	if at := len(r.choices); at < len(r.prefix) {
		answer = min(r.prefix[at], len(c.Options)-1)
	}
	if lasting {
		if r.answers == nil {
			r.answers = map[question][]remembered{}
		}
		r.answers[key] = append(r.answers[key], remembered{c.About, answer})
	}
	if c.Interface != nil {
		r.facts(c.Interface).learn(c.Interface.Name, (answer == 0) != c.Interface.Not)
	}
	r.choices = append(r.choices, Chosen{Choice: c, Host: r.m.Name, Answer: answer, Step: len(r.steps)})
	return answer
}

// choose asks for something that no rule decides.
func (r *run) choose(kind netfilter.ChoiceKind, about fmt.Stringer, options []netfilter.Option) int {
	if len(options) == 1 {
		return 0
	}
	return r.Choose(netfilter.Choice{Kind: kind, About: about, What: about.String(), Options: options})
}

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

// hook runs what the kernel calls at a hook: the chains in the order of their priorities, and between them conntrack and address
// translation at theirs. It tells whether the packet goes on.
func (r *run) hook(f netfilter.Family, h netfilter.Hook) bool {
	builtins := kernelHooks(f, h)
	for _, c := range r.m.Rules.Hook(f, h) {
		for len(builtins) > 0 && builtins[0].priority <= c.Base.Priority {
			if !r.kernel(builtins[0].work, f, h) {
				return false
			}
			builtins = builtins[1:]
		}
		if c.Base.Type == "nat" && f != netfilter.Bridge {
			continue // called by translate
		}
		if !r.filterChain(c, f, h) {
			return false
		}
	}
	for _, b := range builtins {
		if !r.kernel(b.work, f, h) {
			return false
		}
	}
	return true
}

// kernelHook is something in the kernel that stands between the chains of a hook.
type kernelHook struct {
	priority int
	work     work
}

// work is what a kernelHook does.
type work uint8

const (
	defragmenting work = iota
	tracking
	translating
	confirming
	bridgePre
	bridgeFwd
	bridgePost
)

func (r *run) kernel(w work, f netfilter.Family, h netfilter.Hook) bool {
	switch w {
	case defragmenting:
		return !r.m.Rules.Tracks(f) || !r.waits("conntrack waits for all of a packet (nf_defrag_ipv4)")
	case tracking:
		return r.track(f, h)
	case translating:
		return r.translate(f, h)
	case confirming:
		return r.confirm()
	case bridgePre:
		return r.bridgeNetfilterPrerouting()
	case bridgeFwd:
		return r.bridgeNetfilterForward()
	default:
		return r.bridgeNetfilterPostrouting()
	}
}

const last = math.MaxInt // NF_IP_PRI_CONNTRACK_CONFIRM, NF_BR_PRI_LAST

var (
	trackAndDNAT = []kernelHook{{netfilter.PriorityDefrag, defragmenting}, {netfilter.PriorityConntrack, tracking},
		{netfilter.PriorityDNAT, translating}}
	snatAndConfirm = []kernelHook{{netfilter.PrioritySNAT, translating}, {last, confirming}}
	// Priorities of br_netfilter (net/bridge/br_netfilter_hooks.c, br_nf_ops).
	bridgePrerouting  = []kernelHook{{0, bridgePre}}
	bridgeForward     = []kernelHook{{-1, bridgeFwd}}
	bridgePostrouting = []kernelHook{{last, bridgePost}}
)

func kernelHooks(f netfilter.Family, h netfilter.Hook) []kernelHook {
	if f == netfilter.Bridge {
		switch h {
		case netfilter.Prerouting:
			return bridgePrerouting
		case netfilter.Forward:
			return bridgeForward
		case netfilter.Postrouting:
			return bridgePostrouting
		}
		return nil
	}
	switch h {
	case netfilter.Prerouting, netfilter.Output:
		return trackAndDNAT
	case netfilter.Input, netfilter.Postrouting:
		return snatAndConfirm
	}
	return nil
}

// filterChain evaluates a base chain that is not for translation. A route chain at output makes the kernel look the route up again when it
// changed what routing looks at (net/netfilter/nft_chain_route.c).
func (r *run) filterChain(c *netfilter.Chain, f netfilter.Family, h netfilter.Hook) bool {
	before := r.p
	v, ok := r.evaluate(c, f, h, nil)
	if !ok || !r.goesOn(v) {
		return false
	}
	if c.Base.Type == "route" && h == netfilter.Output && routingChanged(&before, &r.p) {
		return r.reroute()
	}
	return true
}

func routingChanged(b, a *packet.Packet) bool {
	return b.Mark != a.Mark || b.Source != a.Source || b.Destination != a.Destination || b.TOS != a.TOS
}

// evaluate runs a chain and notes the rules it met. It tells false when the walk has ended because of an error in the rules.
func (r *run) evaluate(c *netfilter.Chain, f netfilter.Family, h netfilter.Hook,
	translate func(packet.Translation) netfilter.Verdict) (netfilter.Verdict, bool) {
	ctx := &r.context
	from, p := len(r.trail), r.p
	*ctx = netfilter.Context{
		Packet: &r.p, Family: f, Hook: h, Host: r.m, Chooser: r, Translate: translate, Trail: r.trail, EveryRule: r.req.EveryRule,
		OpenRules: r.req.OpenRules,
	}
	v, err := c.Run(ctx)
	r.trail = ctx.Trail
	for i := from; i < len(r.trail); i++ {
		visit := &r.trail[i]
		if visit.After != nil {
			p = *visit.After
		}
		r.step(Step{Stage: Ruled, Family: f, Hook: h, Visit: visit, Changes: visit.Changes})
		r.steps[len(r.steps)-1].Packet = p
	}
	if err != nil {
		r.finish(Looped, err.Error())
		return v, false
	}
	return v, true
}

// goesOn ends the packet's way unless the verdict lets it pass.
func (r *run) goesOn(v netfilter.Verdict) bool {
	switch v.Kind {
	case netfilter.Accept:
		return true
	case netfilter.Drop:
		r.finish(Dropped, "dropped by "+r.lastRule())
	case netfilter.Reject:
		r.finish(Rejected, fmt.Sprintf("rejected with %s by %s", v.Detail, r.lastRule()))
	case netfilter.Stolen:
		r.finish(Dropped, fmt.Sprintf("taken by %s: %s", r.lastRule(), v.Detail))
	default:
		r.finish(Undecided, fmt.Sprintf("nobody can tell what %s does: %s", r.lastRule(), v.Detail))
	}
	r.end.Reject = v.Detail
	return false
}

// lastRule names the rule of the last step that has one.
func (r *run) lastRule() string {
	for i := len(r.steps) - 1; i >= 0; i-- {
		if v := r.steps[i].Visit; v != nil {
			return v.Chain.Ref(v.Rule)
		}
	}
	return "a rule"
}

func family(p *packet.Packet) netfilter.Family {
	if p.IsIPv6() {
		return netfilter.IPv6
	}
	return netfilter.IPv4
}
