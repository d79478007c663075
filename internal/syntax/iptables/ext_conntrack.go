package iptables

import (
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

const conntrackOptions = "ctstate ctproto ctorigsrc ctorigdst ctreplsrc ctrepldst ctorigsrcport ctorigdstport " +
	"ctreplsrcport ctrepldstport ctstatus ctexpire ctdir"

var conntrackMatch = matchExtension{
	options: spec(conntrackOptions),
	lower:   lowerConntrack,
	listed:  listedConntrack(),
}

// listedConntrack: each option prints its own name.
func listedConntrack() map[string]listedMatch {
	listed := map[string]listedMatch{}
	for option := range spec(conntrackOptions) {
		listed[option] = after("", "conntrack", option)
	}
	return listed
}

// stateMatch is conntrack's older form.
var stateMatch = matchExtension{
	options: spec("state"),
	lower:   each(lowerState),
	listed:  map[string]listedMatch{"state": after("", "state", "state")},
}

func lowerConntrack(l *lowerer, m *Match) bool {
	t := &netfilter.MatchConntrack{}
	l.test(t)
	return lowerAll(m, func(o *Option) bool { return conntrackOption(t, o) })
}

func conntrackOption(t *netfilter.MatchConntrack, o *Option) (ok bool) {
	switch o.Name {
	case "ctstate":
		t.States, ok = parseStates(o.arg())
		t.States.Not = o.Not
		return ok
	case "ctdir":
		direction := strings.ToUpper(o.arg())
		t.Direction = &netfilter.MatchDirection{Not: o.Not, Reply: direction == "REPLY"}
		return direction == "REPLY" || direction == "ORIGINAL"
	case "ctproto":
		p, err := packet.ParseProtocol(o.arg())
		t.Protocol = &netfilter.MatchProtocol{Not: o.Not, Protocol: p}
		return err == nil
	case "ctstatus":
		t.Status = &netfilter.MatchStatus{Not: o.Not}
		for name := range strings.SplitSeq(o.arg(), ",") {
			s, known := statusNames[strings.ToUpper(name)]
			if !known {
				return false
			}
			t.Status.Status |= s
		}
		return true
	case "ctexpire":
		t.Expires = negatedText(o.Not) + o.arg()
		return o.arg() != ""
	}
	if name, isPort := strings.CutSuffix(o.Name, "port"); isPort {
		r, ok := parsePorts(o.arg(), ":")
		end, ok2 := flowEnds[name]
		t.Ports = append(t.Ports, netfilter.MatchFlowPort{End: end, Not: o.Not, Port: r})
		return ok && ok2
	}
	var a AddressMatch
	end, ok := flowEnds[o.Name]
	if !ok || !parseAddress(&a, o.Not, o.arg()) {
		return false
	}
	if a.Prefix.IsValid() {
		t.Addresses = append(t.Addresses, netfilter.MatchFlowAddress{End: end, Not: o.Not, Prefix: a.Prefix})
	}
	return true
}

func negatedText(not bool) string {
	if not {
		return "not "
	}
	return ""
}

func lowerState(l *lowerer, o *Option) bool {
	s, ok := parseStates(o.arg())
	s.Not = o.Not
	l.test(&netfilter.MatchConntrack{States: s})
	return ok && !s.SNAT && !s.DNAT
}

var stateNames = map[string]packet.TrackState{
	"INVALID": packet.Invalid, "NEW": packet.New, "RELATED": packet.Related, "ESTABLISHED": packet.Established, "UNTRACKED": packet.Untracked,
}

func parseStates(text string) (*netfilter.MatchStates, bool) {
	s := &netfilter.MatchStates{}
	for name := range strings.SplitSeq(text, ",") {
		switch name = strings.ToUpper(name); name {
		case "SNAT":
			s.SNAT = true
		case "DNAT":
			s.DNAT = true
		default:
			state, ok := stateNames[name]
			if !ok {
				return s, false
			}
			s.States |= state
		}
	}
	return s, true
}

var statusNames = map[string]packet.Status{
	"NONE": 0, "EXPECTED": packet.Expected, "SEEN_REPLY": packet.SeenReply, "ASSURED": packet.Assured, "CONFIRMED": packet.Confirmed,
}

var flowEnds = map[string]netfilter.FlowEnd{
	"ctorigsrc": netfilter.OriginalSource, "ctorigdst": netfilter.OriginalDestination,
	"ctreplsrc": netfilter.ReplySource, "ctrepldst": netfilter.ReplyDestination,
}
