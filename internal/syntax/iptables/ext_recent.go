package iptables

import "packetwalk.dev/internal/model/netfilter"

var recentMatch = matchExtension{
	options: spec("set=0 rcheck=0 update=0 remove=0 seconds hitcount reap=0 rttl=0 name mask rsource=0 rdest=0"),
	lower:   lowerRecent,
	listed:  map[string]listedMatch{"recent:": (*restReader).recent},
}

// lowerRecent: "--set" alone always holds; the others ask the list (net/netfilter/xt_recent.c).
func lowerRecent(l *lowerer, m *Match) bool {
	set, ok := m.Option("set")
	switch {
	case ok && set.Not:
		l.test(&netfilter.MatchNever{Words: "never: the address is noted in any case"})
		return true
	case ok:
		name, _ := m.Option("name")
		_, destination := m.Option("rdest")
		side := "source"
		if destination {
			side = "destination"
		}
		l.note("note the %s in list %s", side, name.arg())
		return true
	}
	return lowerHistory(l, m)
}

var recentActions = map[string]string{"SET": "set", "CHECK": "rcheck", "UPDATE": "update", "REMOVE": "remove"}

// recentFields are what "recent:" prints behind its action, and the options they are.
var recentFields = map[string]string{"seconds:": "seconds", "hit_count:": "hitcount", "name:": "name"}

func (l *restReader) recent(not bool) bool {
	l.begin("recent")
	action, ok := recentActions[l.next()]
	if !ok {
		return false
	}
	l.add("recent", Option{Not: not, Name: action})
	side := ""
	for {
		word := l.peek()
		switch option := recentFields[word]; {
		case option != "":
			l.next()
			if !l.value("recent", option, false) {
				return false
			}
		case word == "reap":
			l.next()
			l.add("recent", Opt("reap"))
		case word == "TTL-Match":
			l.next()
			l.add("recent", Opt("rttl"))
		case word == "side:":
			l.next()
			side = map[string]string{"source": "rsource", "dest": "rdest"}[l.next()]
		case word == "mask:":
			l.next()
			if !l.value("recent", "mask", false) {
				return false
			}
		default:
			return side != "" && l.add("recent", Opt(side))
		}
	}
}
