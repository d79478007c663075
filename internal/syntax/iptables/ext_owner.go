package iptables

import (
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

var ownerMatch = matchExtension{
	options: spec("uid-owner gid-owner socket-exists=0 suppl-groups=0"),
	lower:   lowerOwner,
	listed:  map[string]listedMatch{"owner": (*restReader).owner},
}

func lowerOwner(l *lowerer, m *Match) bool {
	t := &netfilter.MatchOwner{}
	l.test(t)
	return lowerAll(m, func(o *Option) bool {
		switch o.Name {
		case "socket-exists":
			t.SocketExists, t.NoSocket = !o.Not, o.Not
			return true
		case "suppl-groups":
			t.Supplementary = true
			return !o.Not
		}
		low, high, isRange := strings.Cut(o.arg(), "-")
		if !isRange {
			high = low
		}
		a, err := strconv.ParseUint(low, 10, 32)
		b, err2 := strconv.ParseUint(high, 10, 32)
		r := &netfilter.IDRange{Not: o.Not, Low: uint32(a), High: uint32(b)}
		if o.Name == "uid-owner" {
			t.UID = r
		} else {
			t.GID = r
		}
		return err == nil && err2 == nil
	})
}

func (l *restReader) owner(not bool) bool {
	switch {
	case l.lit("UID match"):
		return l.user("uid-owner", not)
	case l.lit("GID match"):
		return l.user("gid-owner", not)
	case l.lit("socket exists"):
		return l.add("owner", Option{Not: not, Name: "socket-exists"})
	}
	return false
}

// user reads a number, a range or root; whose number another name has is the machine's to tell.
func (l *restReader) user(option string, not bool) bool {
	if l.lit("root") {
		return l.add("owner", Option{Not: not, Name: option, Args: []string{"0"}})
	}
	return strings.Trim(l.peek(), "0123456789-") == "" && l.value("owner", option, not)
}
