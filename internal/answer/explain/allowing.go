package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/answer/explain/foreign"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// mostAllowing is the most rules that allowing names.
const mostAllowing = 2

// allowing names the policy rules that nearly allowed a dropped packet: those of which exactly one test failed, and with which the packet
// passes all policies of the pod or interface once that test holds.
func (t *renderer) allowing(st *walk.Step) (words []string) {
	if t.owners == nil || t.owners.States == nil {
		return nil
	}
	host, err := t.owners.States.Host(st.Host)
	if err != nil {
		return nil
	}
	d := &policyDrop{renderer: t, step: st, host: host}
	p := st.Packet
	c := d.context(&p)
	for _, policy := range t.policies(st.Visit.Chain, st.Visit.Rule) {
		for i := range policy.Rules {
			rule := &policy.Rules[i]
			if !foreign.Allows(rule.Text) || len(words) == mostAllowing {
				continue
			}
			if failing, known := rule.Failing(c); known && len(failing) == 1 {
				need := d.need(failing[0])
				if _, mark := failing[0].(*netfilter.MatchMark); mark {
					need = d.exception(policy.Rules[:i], c)
				}
				if need != "" {
					words = append(words, fmt.Sprintf("policy %s would allow it %s: %s", t.policy(policy), need, policy.Ref(rule)))
				}
			}
		}
	}
	return words
}

// policyDrop is a packet that policies dropped, at the chain that asks them.
type policyDrop struct {
	*renderer
	step *walk.Step
	host *snapshot.Host
}

func (d *policyDrop) context(p *packet.Packet) *netfilter.Context {
	return &netfilter.Context{Packet: p, Family: d.step.Visit.Chain.Table.Family, Hook: d.step.Hook, Host: setsOf{d.host}}
}

// passes reports whether the packet, once it is changed, returns from the chain that dropped it.
func (d *policyDrop) passes(change func(*packet.Packet)) bool {
	p := d.step.Packet
	change(&p)
	c := d.context(&p)
	v, err := d.step.Visit.Chain.Run(c)
	return err == nil && v.Kind == netfilter.Undecided && len(c.Visits) > 0 && c.Visits[len(c.Visits)-1].Rule == nil
}

// need describes what would have to be otherwise for a test to hold; "" where that would not do, and for tests of other things.
func (d *policyDrop) need(test netfilter.Statement) string {
	switch m := test.(type) {
	case *netfilter.MatchPort:
		if len(m.Ranges) == 0 {
			return ""
		}
		port := m.Ranges[0].Low
		if d.passes(func(p *packet.Packet) { p.DestinationPort = packet.Exactly(port) }) {
			return "with " + m.String()
		}
	case *netfilter.MatchProtocol:
		if d.passes(func(p *packet.Packet) { p.Protocol = m.Protocol }) {
			return "with " + m.String()
		}
	case *netfilter.MatchAddress:
		if m.Not || m.Mask.IsValid() {
			return ""
		}
		return d.within(m)
	case *netfilter.MatchSet:
		if set := d.host.IPSets[m.Name]; set != nil && !m.Not {
			return d.members(set, m.Sources)
		}
	case *netfilter.InSet:
		field, ok := m.Value.(*netfilter.Field)
		switch {
		case !ok || m.Not:
		case strings.HasPrefix(m.Words, "@") && strings.HasSuffix(field.Type, "_addr"):
			return d.members(m.Set, []bool{field.Words == "source"})
		case !strings.HasPrefix(m.Words, "@"):
			return "with " + m.String()
		}
	}
	return ""
}

// exception describes the last of a policy's rules that applies to the packet and clears a mark by which felix excepts a range.
func (d *policyDrop) exception(rules []netfilter.Rule, c *netfilter.Context) string {
	for i := len(rules) - 1; i >= 0; i-- {
		if !foreign.Excepts(rules[i].Text) {
			continue
		}
		if failing, known := rules[i].Failing(c); known && len(failing) == 0 {
			for _, s := range rules[i].Statements {
				if m, ok := s.(*netfilter.MatchAddress); ok {
					return "without its exception, " + m.String()
				}
			}
		}
	}
	return ""
}

// within describes the addresses of a prefix with which the packet passes. Those that other rules of the policies except are named.
func (d *policyDrop) within(m *netfilter.MatchAddress) string {
	with := func(a netip.Addr) bool {
		return d.passes(func(p *packet.Packet) { setEnd(p, m.Source, a) })
	}
	first, second := m.Prefix.Addr(), m.Prefix.Addr().Next()
	if passes := with(first) || m.Prefix.Contains(second) && with(second); !passes {
		return ""
	}
	var except []string
	for _, policy := range d.policies(d.step.Visit.Chain, d.step.Visit.Rule) {
		for i := range policy.Rules {
			for _, s := range policy.Rules[i].Statements {
				other, ok := s.(*netfilter.MatchAddress)
				if ok && other.Source == m.Source && other.Prefix.Bits() > m.Prefix.Bits() && m.Prefix.Contains(other.Prefix.Addr()) &&
					!with(other.Prefix.Addr()) {
					except = append(except, other.Prefix.String())
				}
			}
		}
	}
	slices.Sort(except)
	if except = slices.Compact(except); len(except) > 0 {
		return "with " + m.String() + ", except " + snapshot.List(except)
	}
	return "with " + m.String()
}

func setEnd(p *packet.Packet, source bool, a netip.Addr) {
	if source {
		p.Source = a
	} else {
		p.Destination = a
	}
}

// mostMembers is the most elements of a set that are tried.
const mostMembers = 100

// members names the members of a set with which the packet passes, and the labels that all of them share as pods and that the pod of the
// packet lacks. A set of addresses alone is a selector's; one of addresses and ports a named port's, or a Service's.
func (d *policyDrop) members(set *netfilter.Set, sources []bool) string {
	p := &d.step.Packet
	if len(sources) != 1 {
		return d.ports(set, sources)
	}
	other, way := p.Destination, "to "
	if sources[0] {
		other, way = p.Source, "from "
	}
	if len(set.Elements) == 0 {
		return way + "what its selector chooses, which is nothing now"
	}
	const most = 2
	var names []string
	var shared map[string]string
	pods := len(set.Elements) <= mostMembers
	for i := range set.Elements[:min(len(set.Elements), mostMembers)] {
		e := &set.Elements[i]
		if len(e.Key) != 1 {
			return ""
		}
		first, last := e.Key[0].Low.Address(other.Is6()), e.Key[0].High.Address(other.Is6())
		if !d.passes(func(p *packet.Packet) { setEnd(p, sources[0], first) }) {
			continue
		}
		name := first.String()
		if first != last {
			name += "-" + last.String()
		} else if owner, ok := d.owners.Address(first, 0, 0); ok {
			name = owner.String()
		}
		names = append(names, name)
		switch pod := d.owners.pod(first); {
		case pod == nil || first != last:
			pods = false
		case len(names) == 1:
			shared = maps.Clone(pod.Labels)
		default:
			maps.DeleteFunc(shared, func(k, v string) bool { return pod.Labels[k] != v })
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	text := way + strings.Join(names[:min(most, len(names))], " or ")
	if n := len(names) - most; n > 0 {
		text += fmt.Sprintf(" or %d others", n)
	}
	if pod := d.owners.pod(other); pods && pod != nil {
		maps.DeleteFunc(shared, func(k, v string) bool { return pod.Labels[k] == v })
		var labels []string
		for _, k := range slices.Sorted(maps.Keys(shared)) {
			labels = append(labels, k+"="+shared[k])
		}
		text += paren(strings.Join(labels, ", "))
	}
	return text
}

// ports names the ports of the packet's destination that a set of addresses and ports has, and with which the packet passes.
func (d *policyDrop) ports(set *netfilter.Set, sources []bool) string {
	p := &d.step.Packet
	if len(sources) != 2 || sources[0] || sources[1] {
		return ""
	}
	var ports []string
	for i := range set.Elements[:min(len(set.Elements), mostMembers)] {
		key := set.Elements[i].Key
		if len(key) < 2 || key[0].Low.Address(p.Destination.Is6()) != p.Destination {
			continue
		}
		n := key[len(key)-1].Low.Lo
		if n < 1<<16 && d.passes(func(p *packet.Packet) { p.DestinationPort = packet.Exactly(uint16(n)) }) {
			ports = append(ports, fmt.Sprint(n))
		}
	}
	if len(ports) == 0 {
		return ""
	}
	return "with destination port " + strings.Join(ports, " or ")
}

// pod returns the pod that has the address, without host network; nil where there is none.
func (o *Owners) pod(a netip.Addr) *snapshot.Pod {
	for i := range o.objects.Pods {
		if p := &o.objects.Pods[i]; !p.HostNetwork && slices.Contains(p.IPs, a) {
			return p
		}
	}
	return nil
}

// setsOf answers rules from a host's IP sets alone.
type setsOf struct{ *snapshot.Host }

func (setsOf) Recent(string) (netfilter.RecentList, bool) { return nil, false }
func (s setsOf) IPSet(name string) (*netfilter.Set, bool) { set, ok := s.IPSets[name]; return set, ok }
func (setsOf) AddressType(netip.Addr, string) (netfilter.AddressType, bool) {
	return netfilter.Unspec, false
}
func (setsOf) Route(netfilter.RouteQuery) (netfilter.RouteAnswer, bool) {
	return netfilter.RouteAnswer{}, false
}
func (setsOf) Link(string) (netfilter.Link, bool) { return netfilter.Link{}, false }
