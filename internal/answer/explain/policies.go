package explain

import (
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// networkPolicy is the component of what NetworkPolicies returns.
const networkPolicy = "NetworkPolicy"

// passage is where a packet leaves a pod, or comes to it.
type passage struct {
	pod  *snapshot.Pod // its name alone where it is not among the objects
	host string        // the pod's, or the node where the packet of a pod comes in whose namespace is not at hand
	gate string        // the host next to it on the way, whose rules or programs may enforce policies; "" for none
	out  bool
}

// NetworkPolicies returns an assumption for each pod that the packet leaves or comes to and that NetworkPolicies select which no rule
// enforces, or of which that is unknown. Where a known network policy engine has rules, they decide and there is nothing to assume.
func NetworkPolicies(src snapshot.Source, r *walk.Result, o *Owners) (assumed []walk.Assumption) {
	objects := src.Objects()
	found := map[[2]string]enforcement{}
	type finding struct {
		pod string
		enforcement
		unlisted string // why the policies themselves are unknown; "" where they are known
	}
	policies := map[finding][]string{}
	var order []finding
	for _, p := range passages(&objects, r) {
		hosts := [2]string{p.host, p.gate}
		e, known := found[hosts]
		if !known {
			e = o.enforcementAt(src, r, hosts)
			found[hosts] = e
		}
		if e.byRules {
			continue
		}
		key := finding{pod: "pod/" + p.pod.Namespace + "/" + p.pod.Name}
		var names []string
		switch {
		case objects.NetworkPolicies == nil:
			key.unlisted = "there is no list of NetworkPolicies"
		case !slices.ContainsFunc(objects.Pods, func(known snapshot.Pod) bool { return same(&known, p.pod) }):
			key.unlisted = "it is not in the list of pods"
		default:
			key.enforcement = e
			if names = selecting(objects.NetworkPolicies, p); len(names) == 0 {
				continue
			}
		}
		if _, known := policies[key]; !known {
			order = append(order, key)
		}
		policies[key] = append(policies[key], names...)
	}
	for _, f := range order {
		names := policies[f]
		slices.Sort(names)
		names = slices.Compact(names)
		what, verb := "NetworkPolicy ", "is"
		if len(names) > 1 {
			what, verb = "NetworkPolicies ", "are"
		}
		what += snapshot.List(names)
		switch {
		case f.unlisted != "":
			what = unlistedPolicies + " is not known: " + f.unlisted
		case f.unknown:
			what = fmt.Sprintf("whether %s %s enforced is not known: %s", what, verb, f.why)
		default:
			what = fmt.Sprintf("%s %s not enforced: %s", what, verb, f.why)
		}
		assumed = append(assumed, walk.Assumption{Host: f.pod, What: what, Component: networkPolicy})
	}
	return assumed
}

// unlistedPolicies is how an assumption begins that names no policy.
const unlistedPolicies = "whether a NetworkPolicy selects it"

// openPolicies returns those of the assumptions about policies that name one and are about an outcome's pods. A pod that no outcome comes to
// is the sender, whose namespace is not at hand.
func openPolicies(r *walk.Result, read []walk.Assumption, o *walk.Outcome) (open []string) {
	comesTo := func(o *walk.Outcome, host string) bool {
		return slices.ContainsFunc(o.There, func(s walk.Step) bool { return s.Host == host })
	}
	for _, a := range read {
		isSender := !slices.ContainsFunc(r.Outcomes, func(o walk.Outcome) bool { return comesTo(&o, a.Host) })
		if a.Component == networkPolicy && !strings.HasPrefix(a.What, unlistedPolicies) && (isSender || comesTo(o, a.Host)) {
			open = append(open, hostName(a.Host)+": "+a.What)
		}
	}
	return open
}

func same(a, b *snapshot.Pod) bool { return a.Namespace == b.Namespace && a.Name == b.Name }

// selecting names the policies about a passage.
func selecting(policies []snapshot.NetworkPolicy, at passage) (names []string) {
	for i := range policies {
		p := &policies[i]
		if (at.out && p.Egress || !at.out && p.Ingress) && p.Selects(at.pod) {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return names
}

// passages returns those of the outcomes' ways there. The way back is that of a connection, which policies let through.
func passages(objects *snapshot.Objects, r *walk.Result) (all []passage) {
	find := func(namespace, name string) *snapshot.Pod {
		pod := &snapshot.Pod{Namespace: namespace, Name: name}
		if i := slices.IndexFunc(objects.Pods, func(p snapshot.Pod) bool { return same(&p, pod) }); i >= 0 {
			return &objects.Pods[i]
		}
		return pod
	}
	seen := map[passage]bool{}
	add := func(p passage) {
		if !seen[p] {
			seen[p], all = true, append(all, p)
		}
	}
	if source := r.Request.Packet.Source; r.Request.Forwarded && known(source) {
		for i := range objects.Pods {
			if p := &objects.Pods[i]; !p.HostNetwork && slices.Contains(p.IPs, source) {
				add(passage{pod: p, host: r.Request.Host, out: true})
			}
		}
	}
	pods := map[string]*snapshot.Pod{}
	for i := range r.Outcomes {
		var hosts []string
		for _, s := range r.Outcomes[i].There {
			if len(hosts) == 0 || hosts[len(hosts)-1] != s.Host {
				hosts = append(hosts, s.Host)
			}
		}
		for j, host := range hosts {
			full, ok := strings.CutPrefix(host, "pod/")
			if !ok {
				continue
			}
			if pods[host] == nil {
				namespace, name, _ := strings.Cut(full, "/")
				pods[host] = find(namespace, name)
			}
			if j > 0 {
				add(passage{pod: pods[host], host: host, gate: hosts[j-1]})
			}
			if j+1 < len(hosts) {
				add(passage{pod: pods[host], host: host, gate: hosts[j+1], out: true})
			}
		}
	}
	return all
}

// enforcement is whether NetworkPolicies are enforced: by rules, or not, or that is unknown.
type enforcement struct {
	byRules, unknown bool
	why              string // not by rules
}

// enforcementAt looks for a network policy engine's rules at a pod and at the host next to it; a name may be "".
func (o *Owners) enforcementAt(src snapshot.Source, r *walk.Result, hosts [2]string) enforcement {
	unknown := ""
	for _, name := range hosts {
		if name == "" {
			continue
		}
		h, err := src.Host(name)
		if err != nil {
			unknown = "the state of " + hostName(name) + " is not read"
			continue
		}
		if o.hasPolicyEngine(h.Rules) {
			return enforcement{byRules: true}
		}
		if why := o.mayEnforce(h, r); why != "" {
			unknown = why
		}
	}
	if unknown != "" {
		return enforcement{unknown: true, why: unknown}
	}
	gate := hosts[1]
	if gate == "" {
		gate = hosts[0]
	}
	return enforcement{why: hostName(gate) + " has no rules of a network policy engine"}
}

// hasPolicyEngine reports whether rules lead to a chain in which a known network policy engine decides.
func (o *Owners) hasPolicyEngine(rules *netfilter.Ruleset) bool {
	if rules == nil {
		return false
	}
	for _, table := range rules.Tables {
		for _, chain := range table.Chains {
			for i := range chain.Rules {
				for _, s := range chain.Rules[i].Statements {
					if to, ok := s.(*netfilter.JumpTo); ok && o.signatures().role(to.Chain) == attribution.NetworkPolicy {
						return true
					}
				}
			}
		}
	}
	return false
}

// mayEnforce says what at a host may enforce policies in a way that is not known; "" for nothing.
func (o *Owners) mayEnforce(h *snapshot.Host, r *walk.Result) string {
	host := hostName(h.Name)
	for _, part := range []snapshot.Part{snapshot.Rules, snapshot.RulesIPv6, snapshot.NFT, snapshot.Programs, snapshot.SocketPrograms} {
		if h.Missing[part]+h.Unread[part] != "" {
			return fmt.Sprintf("the %s of %s are not known", part, host)
		}
	}
	for i := range h.Programs {
		if p := &h.Programs[i]; !p.Some {
			return fmt.Sprintf("%s has %s", host, p)
		}
	}
	for i := range h.FIB.Links {
		l := &h.FIB.Links[i]
		for _, program := range []string{l.Program, l.ProgramOut} {
			if program != "" {
				return fmt.Sprintf("%s has %s at %s", host, program, l.Name)
			}
		}
		if l.Kind == "netkit" {
			return fmt.Sprintf("%s has the netkit link %s, whose programs are not read", host, l.Name)
		}
	}
	for i := range r.Outcomes {
		for _, s := range r.Outcomes[i].There {
			if s.Host != h.Name || s.Visit == nil {
				continue
			}
			c := s.Visit.Chain
			builtIn := c.Base != nil && c.Table.Dialect != netfilter.NFTables
			if !builtIn && o.signatures().Chain(family(c), c.Table.Name, c.Name) == nil {
				return fmt.Sprintf("no known program writes the rules of chain %s %s of %s", c.Table.Name, c.Name, host)
			}
		}
	}
	return ""
}
