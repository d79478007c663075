package iptables

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"packetwalk.dev/internal/model/netfilter"
)

var recentMatch = matchExtension{
	options: spec("set=0 rcheck=0 update=0 remove=0 seconds hitcount reap=0 rttl=0 name mask rsource=0 rdest=0"),
	lower:   lowerRecent,
	listed:  map[string]listedMatch{"recent:": (*restReader).recent},
}

// lowerRecent reads what a rule does with a list (net/netfilter/xt_recent.c).
func lowerRecent(l *lowerer, m *Match) bool {
	r := netfilter.Recent{}
	for _, o := range m.Options {
		n, err := strconv.ParseUint(o.arg(), 10, 32)
		switch o.Name {
		case "set", "rcheck", "update", "remove":
			if r.Action != "" {
				return false
			}
			r.Action, r.Not, err = netfilter.RecentAction(o.Name), o.Not, nil
		case "seconds":
			r.Within = time.Duration(n) * time.Second
		case "hitcount":
			r.Hits = int(n)
		case "reap":
			r.Reap, err = true, nil
		case "rttl":
			r.TTL, err = true, nil
		case "name":
			r.List, err = o.arg(), nil
		case "mask":
			r.Mask, err = netip.ParseAddr(o.arg())
		case "rdest":
			r.Destination, err = true, nil
		case "rsource":
			err = nil
		}
		if err != nil {
			return false
		}
	}
	if r.List == "" {
		r.List = "DEFAULT" // iptables-extensions(8)
	}
	r.Words = recentWords(&r)
	l.test(&r)
	return r.Action != ""
}

func recentWords(r *netfilter.Recent) string {
	side := "source"
	if r.Destination {
		side = "destination"
	}
	switch r.Action {
	case netfilter.RecentSet:
		text := fmt.Sprintf("note the %s in list %s", side, r.List)
		if r.Not {
			text += "; never matches"
		}
		return text
	case netfilter.RecentRemove:
		return fmt.Sprintf("take the %s out of list %s, where it %s in it", side, r.List, isOrNot(r.Not))
	}
	text := fmt.Sprintf("the %s %s in list %s", side, isOrNot(r.Not), r.List)
	if r.Within > 0 {
		text += fmt.Sprintf(", seen in the last %.0f s", r.Within.Seconds())
	}
	if r.Hits > 1 {
		text += fmt.Sprintf(", %d times", r.Hits)
	}
	if r.TTL {
		text += ", with the same TTL"
	}
	if r.Action == netfilter.RecentUpdate {
		text += "; note it if so"
	}
	return text
}

func isOrNot(not bool) string {
	if not {
		return "is not"
	}
	return "is"
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
