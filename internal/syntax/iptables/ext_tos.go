package iptables

import (
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

var tosMatch = matchExtension{
	options: spec("tos"),
	lower:   lowerTOS,
	listed:  map[string]listedMatch{"tos": (*restReader).tos},
}

var dscpMatch = matchExtension{
	options: spec("dscp"),
	lower:   lowerTOS,
	listed:  map[string]listedMatch{"DSCP": after("match", "dscp", "dscp")},
}

var tosTarget = targetExtension{
	options: spec("set-tos"),
	lower:   lowerSetTOS,
	listed:  fixed("TOS set", "set-tos"),
}

var dscpTarget = targetExtension{
	options: spec("set-dscp set-dscp-class"),
	lower:   lowerSetTOS,
	listed:  fixed("DSCP set", "set-dscp"),
}

func lowerTOS(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		v, mask, ok := parseMasked(o.arg(), 8)
		if m.Module == "dscp" {
			if strings.Contains(o.arg(), "/") || v > 0x3f {
				return false
			}
			v, mask = v<<2, 0xfc
		}
		l.test(&netfilter.MatchTOS{Not: o.Not, Value: uint8(v), Mask: uint8(mask)})
		return ok
	})
}

// tos reads "tos match0x10/0x3f" and "tos match!0x10/0x3f".
func (l *restReader) tos(not bool) bool {
	value, ok := l.glued("match")
	value, inverted := strings.CutPrefix(value, "!")
	return ok && !not && isNumber0(strings.Split(value, "/")[0]) && l.add("tos", Option{Not: inverted, Name: "tos", Args: []string{value}})
}

func lowerSetTOS(_ *lowerer, t *Target) netfilter.Statement {
	name, arg := t.single()
	v, mask, ok := parseMasked(arg, 8)
	switch {
	case name == "set-tos":
	case name == "set-dscp" && v <= 0x3f && mask == 0xff:
		v, mask = v<<2, 0xfc
	default:
		ok = false
	}
	if !ok {
		return nil
	}
	return &netfilter.SetTOS{Value: uint8(v), Mask: uint8(mask)}
}
