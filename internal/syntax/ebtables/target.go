package ebtables

import (
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/syntax/nftables"
)

// target lowers a rule's target with the options behind it.
func (l *lowerer) target(name string, options []option) []netfilter.Statement {
	if s := l.verdict(name); s != nil {
		return s
	}
	if chain := l.chains[name]; chain != nil {
		return []netfilter.Statement{&netfilter.JumpTo{Name: name, Chain: chain}}
	}
	unknown := []string{"-j " + name}
	option := map[string]string{}
	for i := range options {
		if isTargetOption(options[i].name) {
			option[options[i].name] = options[i].arg()
			unknown = append(unknown, options[i].text())
		}
	}
	if s := l.extension(name, option); s != nil {
		return s
	}
	return []netfilter.Statement{&netfilter.UnknownEffect{Text: strings.Join(unknown, " "), Tracking: netfilter.NeverTracks}}
}

// verdict returns what a verdict's name does; nil for other names. In table broute DROP means that the frame is routed, not bridged, which
// a walk does not follow.
func (l *lowerer) verdict(name string) []netfilter.Statement {
	kind, ok := policies[name]
	switch {
	case !ok:
		return nil
	case kind == netfilter.Continue:
		return []netfilter.Statement{&netfilter.Note{Words: "go on"}}
	case l.broute && kind == netfilter.Drop:
		return []netfilter.Statement{&netfilter.UnknownEffect{Text: "route the frame instead of bridging it", Tracking: netfilter.NeverTracks}}
	}
	return []netfilter.Statement{&netfilter.Decision{Verdict: netfilter.Verdict{Kind: kind}}}
}

// extension lowers ebtables' targets; nil where something is not understood.
func (l *lowerer) extension(name string, option map[string]string) []netfilter.Statement {
	then := func(key, otherwise string) []netfilter.Statement {
		if option[key] != "" {
			otherwise = option[key]
		}
		return l.verdict(otherwise)
	}
	mac := func(keys ...string) (packet.MAC, bool) {
		for _, k := range keys {
			if option[k] != "" {
				v, ok := nftables.ParseValue(option[k], "ether_addr")
				return v.MAC(), ok
			}
		}
		return packet.MAC{}, false
	}
	var first netfilter.Statement
	var rest []netfilter.Statement
	switch name {
	case "snat":
		m, ok := mac("--to-src", "--to-source")
		if !ok {
			return nil
		}
		_, arp := option["--snat-arp"]
		first, rest = &netfilter.SetFrame{Source: true, MAC: m, ARP: arp}, then("--snat-target", "ACCEPT")
	case "dnat":
		m, ok := mac("--to-dst", "--to-destination")
		if !ok {
			return nil
		}
		first, rest = &netfilter.SetFrame{MAC: m}, then("--dnat-target", "ACCEPT")
	case "redirect":
		first, rest = netfilter.RedirectFrame{}, then("--redirect-target", "ACCEPT")
	case "arpreply":
		m, ok := mac("--arpreply-mac")
		target, known := policies[option["--arpreply-target"]]
		if option["--arpreply-target"] == "" {
			target, known = netfilter.Drop, true
		}
		if !ok || !known {
			return nil
		}
		return []netfilter.Statement{&netfilter.ARPReply{MAC: m, Target: target}}
	case "mark":
		if s := setMark(option); s != nil {
			first = s
		}
		rest = then("--mark-target", "ACCEPT")
	}
	if first == nil || rest == nil {
		return nil
	}
	return append([]netfilter.Statement{first}, rest...)
}

func setMark(option map[string]string) *netfilter.SetMark {
	for key, value := range option {
		n, err := strconv.ParseUint(value, 0, 32)
		v := uint32(n)
		switch {
		case key == "--mark-target":
			continue
		case err != nil:
			return nil
		}
		switch key {
		case "--mark-set":
			return &netfilter.SetMark{Value: v, Mask: ^uint32(0)}
		case "--mark-or":
			return &netfilter.SetMark{Value: v, Mask: v}
		case "--mark-and":
			return &netfilter.SetMark{Mask: ^v}
		case "--mark-xor":
			return &netfilter.SetMark{Value: v}
		}
	}
	return nil
}
