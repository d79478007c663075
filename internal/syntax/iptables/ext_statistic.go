package iptables

import (
	"strconv"

	"packetwalk.dev/internal/model/netfilter"
)

var statisticMatch = matchExtension{
	options: spec("mode probability every packet"),
	lower:   lowerStatistic,
	listed:  map[string]listedMatch{"statistic": (*restReader).statistic},
}

func lowerStatistic(l *lowerer, m *Match) bool {
	mode, _ := m.Option("mode")
	probability, isRandom := m.Option("probability")
	every, isNth := m.Option("every")
	switch {
	case mode.arg() == "random" && isRandom && !isNth:
		p, err := strconv.ParseFloat(probability.arg(), 64)
		if err != nil || p < 0 || p > 1 {
			return false
		}
		l.test(&netfilter.MatchRandom{Not: probability.Not, Probability: uint32(p*(1<<31) + 0.5)})
		return true
	case mode.arg() == "nth" && isNth && !isRandom:
		n, err := strconv.ParseUint(every.arg(), 0, 32)
		at, _ := m.Option("packet")
		first, _ := strconv.ParseUint(at.arg(), 0, 32)
		l.test(&netfilter.MatchNth{Not: every.Not, Every: uint32(n), Packet: uint32(first)})
		return err == nil && n > 0
	}
	return false
}

func (l *restReader) statistic(not bool) bool {
	l.begin("statistic")
	if not || !l.lit("mode") {
		return false
	}
	switch mode := l.next(); mode {
	case "random":
		l.add("statistic", Opt("mode", mode))
		not := l.not()
		return l.lit("probability") && l.value("statistic", "probability", not)
	case "nth":
		l.add("statistic", Opt("mode", mode))
		not := l.not()
		if !l.lit("every") || !l.value("statistic", "every", not) {
			return false
		}
		if l.lit("packet") {
			return l.value("statistic", "packet", false)
		}
		return l.add("statistic", Opt("packet", "0")) // -L leaves out 0
	}
	return false
}
