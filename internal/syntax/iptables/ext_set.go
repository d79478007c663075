package iptables

import (
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

const setTargetOptions = "add-set=2 del-set=2 map-set=2 exist=0 timeout map-mark=0 map-prio=0 map-queue=0"

// setMatch: --set is the old name of --match-set.
var setMatch = matchExtension{
	options: spec("match-set=2 set=2 return-nomatch=0 update-counters=0 update-subcounters=0"),
	lower:   lowerSet,
	listed:  map[string]listedMatch{"match-set": (*restReader).set},
}

var setTarget = targetExtension{
	options: spec(setTargetOptions),
	lower:   lowerSetTarget,
	listed:  (*restReader).sets,
}

func lowerSet(l *lowerer, m *Match) bool {
	_, noMatch := m.Option("return-nomatch")
	return lowerAll(m, func(o *Option) bool {
		switch {
		case o.Name == "update-counters" || o.Name == "update-subcounters":
			return true // nothing that a walk sees
		case o.Name != "match-set" && o.Name != "set" || len(o.Args) != 2:
			return o.Name == "return-nomatch" && !o.Not
		}
		sources, ok := parseSides(o.Args[1])
		l.test(&netfilter.MatchSet{Name: o.Args[0], Sources: sources, Not: o.Not, ReturnNoMatch: noMatch})
		return ok
	})
}

// parseSides reads "src,dst": true for src.
func parseSides(text string) (sources []bool, ok bool) {
	for name := range strings.SplitSeq(text, ",") {
		if name != "src" && name != "dst" {
			return nil, false
		}
		sources = append(sources, name == "src")
	}
	return sources, true
}

func (l *restReader) set(not bool) bool {
	name, sides := l.next(), l.next()
	l.begin("set")
	if !isValue(name) || !isValue(sides) {
		return false
	}
	l.add("set", Option{Not: not, Name: "match-set", Args: []string{name, sides}})
	if l.lit("return-nomatch") {
		l.add("set", Opt("return-nomatch"))
	}
	return true
}

// lowerSetTarget lowers SET: what it puts into sets is for later packets. --map-set is not understood.
func lowerSetTarget(_ *lowerer, t *Target) netfilter.Statement {
	var words []string
	for i := range t.Options {
		switch o := &t.Options[i]; {
		case o.Name == "add-set" && len(o.Args) == 2:
			words = append(words, "add the "+o.Args[1]+" to set "+o.Args[0])
		case o.Name == "del-set" && len(o.Args) == 2:
			words = append(words, "take the "+o.Args[1]+" out of set "+o.Args[0])
		case o.Name == "exist", o.Name == "timeout":
		default:
			return nil
		}
	}
	return &netfilter.Note{Words: strings.Join(words, ", "), Remembers: true}
}

func (l *restReader) sets(t *Target) bool {
	return t.readOwn(l, spec(setTargetOptions)) && len(t.Options) > 0
}
