package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/model/snapshot"
)

// A host is a box of the picture.
type host struct {
	id      string // as in a snapshot: node/NAME
	address string
	pods    []host // of a node
}

// name returns the host's name without its kind; a pod's is its Deployment's, without the two parts that were made up.
func (h host) name() string {
	kind, name, _ := strings.Cut(h.id, "/")
	if kind != "pod" {
		return name
	}
	parts := strings.Split(path.Base(name), "-")
	return "pod " + strings.Join(parts[:max(1, len(parts)-2)], "-")
}

// lab is what there is to draw.
type lab struct {
	internet, nodes, vms []host
	frontends            []string
}

// readLab sorts the hosts of a capture. The fabric, the router and the control plane are drawn as what they stand for, not as hosts.
func readLab(state snapshot.Source) (lab, error) {
	var l lab
	for _, id := range state.Names() {
		h, err := state.Host(id)
		if err != nil {
			return lab{}, err
		}
		box := host{id: id, address: firstAddress(h)}
		switch kind, _, _ := strings.Cut(id, "/"); {
		case strings.HasPrefix(id, "internet/"):
			l.internet = append(l.internet, box)
		case kind == "node":
			l.nodes = append(l.nodes, box)
		case kind == "vm":
			l.vms = append(l.vms, box)
		}
	}
	for i := range l.nodes {
		l.nodes[i].pods = podsOf(l.nodes[i], state)
	}
	for _, s := range state.Objects().Services {
		for _, a := range s.External {
			l.frontends = append(l.frontends, fmt.Sprintf("%v for %s", a, s.Name))
		}
	}
	slices.Sort(l.frontends)
	return l, nil
}

// podsOf returns a node's pods with addresses of their own, in the order of those.
func podsOf(node host, state snapshot.Source) []host {
	var pods []host
	for _, p := range state.Objects().Pods {
		id := "pod/" + p.Namespace + "/" + p.Name
		if p.HostNetwork || len(p.IPs) == 0 || "node/"+p.Node != node.id || !slices.Contains(state.Names(), id) {
			continue
		}
		pods = append(pods, host{id: id, address: p.IPs[0].String()})
	}
	slices.SortFunc(pods, func(a, b host) int {
		return cmp.Or(netip.MustParseAddr(a.address).Compare(netip.MustParseAddr(b.address)), cmp.Compare(a.id, b.id))
	})
	return pods
}

// firstAddress returns a host's first address that others can send to.
func firstAddress(h *snapshot.Host) string {
	for _, a := range h.FIB.Addresses {
		if a.Scope == "global" && a.Prefix.Addr().Is4() {
			return a.Prefix.Addr().String()
		}
	}
	return ""
}

// leaving returns the packet as it leaves a host.
func leaving(outcome explain.OutcomeDoc, id string) explain.PacketDoc {
	for _, r := range outcome.Results {
		if n := len(r.Observations); n > 0 && r.Node == id {
			return r.Observations[n-1].Packet
		}
	}
	return explain.PacketDoc{}
}

// onWire returns a packet's header in words.
func onWire(p explain.PacketDoc) string {
	to := p.DstIP
	if p.DstPort != "" {
		to += ":" + p.DstPort
	}
	return "from " + p.SrcIP + " to " + to
}

// A change is what a rule does to a packet that a reader of the picture looks for.
type change struct{ what, rule string }

// changesAt returns the changes that rules make on a host.
func changesAt(outcome explain.OutcomeDoc, id string) []change {
	var all []change
	for _, result := range outcome.Results {
		if result.Node != id {
			continue
		}
		for _, o := range result.Observations {
			if o.Rule == nil {
				continue
			}
			for _, c := range o.Changes {
				if c.To == "0x0" { // a mark that has done its work
					continue
				}
				switch c.Field {
				case "mark":
					all = append(all, change{"mark " + c.To, o.ComponentInfo})
				case "source", "destination":
					all = append(all, change{c.Field + " " + address(c.From) + " → " + address(c.To), o.ComponentInfo})
				}
			}
		}
	}
	return all
}

// address leaves out ports that the kernel picks.
func address(text string) string {
	if at, ports, ok := strings.Cut(text, ":"); ok && strings.Contains(ports, "-") {
		return at
	}
	return text
}
