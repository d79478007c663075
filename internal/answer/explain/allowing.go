package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/answer/explain/foreign"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// mostAllowing is the most rules that allowing names.
const mostAllowing = 2

// allowing names the policy rules that nearly allowed a dropped packet: those of which exactly one test failed.
func (t *renderer) allowing(st *walk.Step) (words []string) {
	if t.owners == nil || t.owners.States == nil {
		return nil
	}
	host, err := t.owners.States.Host(st.Host)
	if err != nil {
		return nil
	}
	p := st.Packet
	c := &netfilter.Context{Packet: &p, Family: st.Visit.Chain.Table.Family, Hook: st.Hook, Host: setsOf{host}}
	for _, policy := range t.policies(st.Visit.Chain, st.Visit.Rule) {
		for i := range policy.Rules {
			rule := &policy.Rules[i]
			if !foreign.Allows(rule.Text) || len(words) == mostAllowing {
				continue
			}
			if failing, known := rule.Failing(c); known && len(failing) == 1 {
				if need := t.need(failing[0], host, st); need != "" {
					words = append(words, fmt.Sprintf("policy %s would allow it %s: %s", t.policy(policy), need, policy.Ref(rule)))
				}
			}
		}
	}
	return words
}

// need describes the failed test of an address, a port or a protocol; "" for other tests.
func (t *renderer) need(test netfilter.Statement, host *snapshot.Host, st *walk.Step) string {
	switch m := test.(type) {
	case *netfilter.MatchPort, *netfilter.MatchProtocol, *netfilter.MatchAddress:
		return "with " + m.String()
	case *netfilter.MatchSet:
		set := host.IPSets[m.Name]
		if set == nil || m.Not || len(m.Sources) != 1 {
			return "with " + m.String()
		}
		return t.holds(set, m.Sources[0], st)
	case *netfilter.InSet:
		field, ok := m.Value.(*netfilter.Field)
		if !ok || m.Not || !strings.HasPrefix(m.Words, "@") || !strings.HasSuffix(field.Type, "_addr") {
			return "with " + m.String()
		}
		return t.holds(m.Set, field.Words == "source", st)
	}
	return ""
}

// holds describes the members of a set that the packet's source, or its destination, is missing from.
func (t *renderer) holds(set *netfilter.Set, source bool, st *walk.Step) string {
	if source {
		return "from " + t.members(set, st.Packet.Source)
	}
	return "to " + t.members(set, st.Packet.Destination)
}

// members names the members of a set of addresses, and the labels that all of them share as pods and that the other pod lacks.
func (t *renderer) members(set *netfilter.Set, other netip.Addr) string {
	const most, mostPods = 2, 100
	var names []string
	var shared map[string]string
	pods := len(set.Elements) <= mostPods
	for i := range set.Elements {
		e := &set.Elements[i]
		if len(e.Key) != 1 {
			return "what set " + set.Name + " holds"
		}
		first, last := e.Key[0].Low.Address(other.Is6()), e.Key[0].High.Address(other.Is6())
		name := first.String()
		if first != last {
			name += "-" + last.String()
		} else if owner, ok := t.owners.Address(first, 0, 0); ok {
			name = owner.String()
		}
		if names = append(names, name); !pods {
			continue
		}
		pod := t.owners.pod(first)
		switch {
		case pod == nil || first != last:
			pods = false
		case i == 0:
			shared = maps.Clone(pod.Labels)
		default:
			maps.DeleteFunc(shared, func(k, v string) bool { return pod.Labels[k] != v })
		}
	}
	slices.Sort(names)
	text := strings.Join(names[:min(most, len(names))], " or ")
	switch n := len(names) - most; {
	case len(names) == 0:
		return "no address: set " + set.Name + " is empty"
	case n > 0:
		text += fmt.Sprintf(" or %d others", n)
	}
	if pod := t.owners.pod(other); pods && pod != nil {
		maps.DeleteFunc(shared, func(k, v string) bool { return pod.Labels[k] == v })
		var labels []string
		for _, k := range slices.Sorted(maps.Keys(shared)) {
			labels = append(labels, k+"="+shared[k])
		}
		text += paren(strings.Join(labels, ", "))
	}
	return text
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

func (s setsOf) IPSet(name string) (*netfilter.Set, bool) { set, ok := s.IPSets[name]; return set, ok }
func (setsOf) AddressType(netip.Addr, string) (netfilter.AddressType, bool) {
	return netfilter.Unspec, false
}
func (setsOf) Route(netfilter.RouteQuery) (netfilter.RouteAnswer, bool) {
	return netfilter.RouteAnswer{}, false
}
func (setsOf) Link(string) (netfilter.Link, bool) { return netfilter.Link{}, false }
