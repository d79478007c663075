package iptables

import "packetwalk.dev/internal/model/netfilter"

const rpfilterOptions = "loose=0 validmark=0 accept-local=0 invert=0"

var rpfilterMatch = matchExtension{
	options: spec(rpfilterOptions),
	lower:   lowerRpfilter,
	listed:  map[string]listedMatch{"rpfilter": ownOptions("rpfilter", "", spec(rpfilterOptions))},
}

func lowerRpfilter(l *lowerer, m *Match) bool {
	t := &netfilter.MatchReversePath{}
	for _, o := range m.Options {
		switch o.Name {
		case "invert":
			t.Invert = true
		case "loose":
			t.Loose = true
		case "validmark":
			t.ValidMark = true
		case "accept-local":
			t.AcceptLocal = true
		}
	}
	l.test(t)
	return true
}
