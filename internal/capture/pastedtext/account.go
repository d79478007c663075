package pastedtext

import (
	"iter"
	"slices"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
)

// Fates is the account of a text's lines.
type Fates struct {
	snapshot.Account
	lines []textLine
}

// NoEffect states why a line has no effect.
func (a Fates) NoEffect(line int, why string) {
	if line > 0 && a.Account[line-1].Fate != snapshot.LineNotRead {
		a.Account[line-1] = snapshot.TextLine{Fate: snapshot.LineNoEffect, As: why}
	}
}

// NotRead states that a line was not read. Lines without a number are not of the text.
func (a Fates) NotRead(line int, why string) {
	if line > 0 {
		_, ipv4, ipv6 := stateOf(a.lines[line-1].raw)
		a.Account[line-1] = snapshot.TextLine{Fate: snapshot.LineNotRead, As: why, IPv4: ipv4, IPv6: ipv6}
	}
}

// Rules returns those of all chains of all tables.
func Rules(families [][]iptables.Table) iter.Seq[*iptables.Rule] {
	return func(yield func(*iptables.Rule) bool) {
		for _, t := range slices.Concat(families...) {
			for _, c := range t.Chains {
				for i := range c.Rules {
					if !yield(&c.Rules[i]) {
						return
					}
				}
			}
		}
	}
}
