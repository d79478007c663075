package iptables

import (
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

var ttlMatch = matchExtension{
	options: spec("ttl-eq ttl-lt ttl-gt"),
	lower:   each(lowerTTL),
	listed:  map[string]listedMatch{"TTL": hops("ttl")},
}

var hlMatch = matchExtension{
	options: spec("hl-eq hl-lt hl-gt"),
	lower:   each(lowerTTL),
	listed:  map[string]listedMatch{"HL": hops("hl")},
}

var ttlTarget = targetExtension{
	options: spec("ttl-set ttl-dec ttl-inc"),
	lower:   lowerSetTTL,
	listed:  counted("TTL", "ttl"),
}

var hlTarget = targetExtension{
	options: spec("hl-set hl-dec hl-inc"),
	lower:   lowerSetTTL,
	listed:  counted("HL", "hl"),
}

func lowerTTL(l *lowerer, o *Option) bool {
	n, err := strconv.ParseUint(o.arg(), 10, 8)
	if err != nil {
		return false
	}
	t := netfilter.MatchTTL{Not: o.Not, Low: uint8(n), High: uint8(n)}
	switch {
	case strings.HasSuffix(o.Name, "-lt") && n == 0, strings.HasSuffix(o.Name, "-gt") && n == 255:
		l.test(&netfilter.MatchNever{Words: "never: no TTL is beyond " + o.arg()})
		return !o.Not
	case strings.HasSuffix(o.Name, "-lt"):
		t.Low, t.High = 0, t.High-1
	case strings.HasSuffix(o.Name, "-gt"):
		t.Low, t.High = t.Low+1, 255
	}
	l.test(&t)
	return true
}

// hops makes a reader of "TTL match TTL == 5" and HL's like.
func hops(module string) func(*restReader, bool) bool {
	suffix := map[string]string{"==": "-eq", "!=": "-eq", "<": "-lt", ">": "-gt"}
	return func(l *restReader, not bool) bool {
		if not || !l.lit("match "+strings.ToUpper(module)) {
			return false
		}
		op := l.next()
		return suffix[op] != "" && l.value(module, module+suffix[op], op == "!=")
	}
}

func lowerSetTTL(_ *lowerer, t *Target) netfilter.Statement {
	name, arg := t.single()
	n, err := strconv.ParseUint(arg, 10, 8)
	if err != nil {
		return nil
	}
	switch {
	case strings.HasSuffix(name, "-set"):
		return &netfilter.SetTTL{Set: true, Value: uint8(n)}
	case strings.HasSuffix(name, "-inc"):
		return &netfilter.SetTTL{Delta: int(n)}
	case strings.HasSuffix(name, "-dec"):
		return &netfilter.SetTTL{Delta: -int(n)}
	}
	return nil
}

// counted makes a reader of "TTL set to 5", "… increment by 5" and "… decrement by 5".
func counted(word, option string) func(*restReader, *Target) bool {
	return func(l *restReader, t *Target) bool {
		for words, suffix := range map[string]string{" set to": "-set", " increment by": "-inc", " decrement by": "-dec"} {
			if l.lit(word + words) {
				return l.word(t, option+suffix)
			}
		}
		return false
	}
}
