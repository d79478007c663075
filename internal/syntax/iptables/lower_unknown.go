package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

// shortFlags are the flags that begin a part of a rule, with the long names that people and programs write them with.
var shortFlags = map[string]string{
	"-s": "-s", "--source": "-s", "--src": "-s", "-d": "-d", "--destination": "-d", "--dst": "-d",
	"-i": "-i", "--in-interface": "-i", "-o": "-o", "--out-interface": "-o", "-p": "-p", "--protocol": "-p", "--proto": "-p",
	"-f": "-f", "--fragment": "-f", "-m": "-m", "--match": "-m", "-j": "-j", "--jump": "-j", "-g": "-g", "--goto": "-g",
}

// splitUnknown takes a rule that ParseSpec does not know apart: into what is known of it, tests that are not understood, and what it does,
// where that is not understood.
func splitUnknown(text string) (known Rule, tests []netfilter.Statement, effect netfilter.Statement) {
	words, ok := split(nil, text)
	if !ok {
		return Rule{}, []netfilter.Statement{&netfilter.UnknownTest{Text: text}}, &netfilter.UnknownEffect{Text: text}
	}
	var s specParser
	for _, part := range parts(words) {
		if r, ok := s.parseWords(known, part); ok {
			known = r
			continue
		}
		switch {
		case isComment(part): // without its quotes: it tests nothing
		case isFlag(part, "-j") || isFlag(part, "-g"):
			e := &netfilter.UnknownEffect{Text: joinWords(part)}
			if len(part) > 1 {
				e.Tracking = targetTracking(part[1].text)
			}
			effect = e
		case isFlag(part, "-p") && len(part) > 2: // the protocol's own options are what is not understood
			if r, ok := s.parseWords(known, part[:2]); ok {
				known, part = r, part[2:]
			}
			tests = append(tests, &netfilter.UnknownTest{Text: joinWords(part), Tracking: netfilter.NeverTracks})
		default:
			tests = append(tests, unknownPart(part))
		}
	}
	return known, tests, effect
}

// parts cuts words in front of each flag. The target comes last: where it stands does not matter.
func parts(words []word) [][]word {
	cut := cutAtFlags(words)
	slices.SortStableFunc(cut, func(a, b []word) int { return rank(a) - rank(b) })
	return cut
}

func rank(part []word) int {
	if isFlag(part, "-j") || isFlag(part, "-g") {
		return 1
	}
	return 0
}

func cutAtFlags(words []word) [][]word {
	var cut [][]word
	begin := 0
	for i, w := range words {
		short, ok := shortFlags[w.text]
		if !ok || w.quoted || w.text == "--proto" && i > begin+1 && isFlag(words[begin:], "-m") && hasProto(words[begin+1].text) {
			continue
		}
		words[i].text = short
		start := i
		if i > begin && words[i-1].text == "!" && !words[i-1].quoted {
			start--
		}
		if start > begin {
			cut = append(cut, words[begin:start])
		}
		begin = start
	}
	if begin < len(words) {
		cut = append(cut, words[begin:])
	}
	return cut
}

func isComment(part []word) bool {
	return len(part) > 2 && isFlag(part, "-m") && part[1].text == "comment" && part[2].text == "--comment"
}

// hasProto reports whether --proto behind -m MODULE can be the module's own option. Elsewhere it is short for --protocol.
func hasProto(module string) bool {
	e, known := matchExtensions[module]
	return !known || e.options["proto"] > 0
}

func isFlag(part []word, flag string) bool { return part[0].text == flag && !part[0].quoted }

// unknownPart returns the test for words that the parser does not know. Masks that are no prefixes are understood here.
func unknownPart(part []word) netfilter.Statement {
	not := isFlag(part, "!")
	rest := part
	if not {
		rest = part[1:]
	}
	if len(rest) == 2 && (isFlag(rest, "-s") || isFlag(rest, "-d")) {
		if m, ok := maskedAddress(rest[1].text); ok {
			m.Source, m.Not = rest[0].text == "-s", not
			return m
		}
	}
	test := &netfilter.UnknownTest{Text: joinWords(part)}
	if len(rest) > 1 && isFlag(rest, "-m") {
		test.Tracking = matchTracking(rest[1].text)
	}
	return test
}

func maskedAddress(text string) (*netfilter.MatchAddress, bool) {
	address, mask, _ := strings.Cut(text, "/")
	a, err := netip.ParseAddr(address)
	m, err2 := netip.ParseAddr(mask)
	if err != nil || err2 != nil || a.Is4() != m.Is4() || a.Zone() != "" || m.Zone() != "" {
		return nil, false
	}
	return &netfilter.MatchAddress{Prefix: netip.PrefixFrom(a, a.BitLen()), Mask: m}, true
}

func joinWords(words []word) string {
	var b []byte
	for i, w := range words {
		if i > 0 {
			b = append(b, ' ')
		}
		if w.quoted || !isBare(w.text) && w.text != "!" {
			b = appendQuoted(b, w.text)
		} else {
			b = append(b, w.text...)
		}
	}
	return string(b)
}
