package walk

import (
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

// linkEnd is one of the two interfaces by which a flow passes a machine, where they are unknown: the one that the request came
// in by, or the one that it left by. The answer goes the other way round.
type linkEnd struct {
	host *machine
	far  bool // where the request left
}

// linkFacts is what a run has taken to be so of an interface's name. Names that end in "+" stand for any rest.
type linkFacts struct{ is, not []string }

func (t *transit) facts(m *netfilter.MatchInterface) *linkFacts {
	end := linkEnd{t.m, m.Out != (t.inReplyTo != nil)}
	f := t.run.links[end]
	if f == nil {
		if t.run.links == nil {
			t.run.links = map[linkEnd]*linkFacts{}
		}
		f = &linkFacts{}
		t.run.links[end] = f
	}
	return f
}

func (f *linkFacts) learn(name string, is bool) {
	if is {
		f.is = append(f.is, name)
	} else {
		f.not = append(f.not, name)
	}
}

// implied reports whether a test of the interface follows from what is known: from earlier answers, and from where the packet's address is.
func (t *transit) implied(m *netfilter.MatchInterface) (known, holds bool) {
	address := t.p.Source
	if m.Out {
		address = t.p.Destination
	}
	switch link, others := t.m.Behind(address); {
	case link != "":
		return true, covers(m.Name, link) != m.Not
	case slices.Contains(others, m.Name):
		return true, m.Not
	case m.Name == "lo" && !address.IsLoopback(): // what the machine sends itself has its interface
		return true, m.Not
	}
	f := t.facts(m)
	for _, is := range f.is {
		switch {
		case covers(m.Name, is):
			return true, !m.Not
		case !covers(is, m.Name):
			return true, m.Not
		}
	}
	if slices.ContainsFunc(f.not, func(not string) bool { return covers(not, m.Name) }) {
		return true, m.Not
	}
	return false, false
}

// covers reports whether each interface with the second name has the first.
func covers(pattern, name string) bool {
	prefix, open := strings.CutSuffix(pattern, "+")
	if !open {
		return pattern == name
	}
	return strings.HasPrefix(strings.TrimSuffix(name, "+"), prefix)
}

func answerOf(holds bool) int {
	if holds {
		return 0
	}
	return 1
}
