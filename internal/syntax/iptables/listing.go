package iptables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/packet"
)

// ParseChainHeader reads "Chain INPUT (policy ACCEPT 1 packets, 52 bytes)" and "Chain X (2 references)", with any number of spaces, as
// column(1) leaves them.
func ParseChainHeader(line string) (Chain, bool) {
	rest, ok := strings.CutPrefix(line, "Chain ")
	name, inner, ok2 := strings.Cut(rest, " (")
	name = strings.TrimSpace(name)
	inner, ok3 := strings.CutSuffix(strings.TrimSpace(inner), ")")
	if !ok || !ok2 || !ok3 || !IsName(name) {
		return Chain{}, false
	}
	fields := strings.Fields(inner)
	if len(fields) < 2 {
		return Chain{}, false
	}
	if strings.HasPrefix(fields[1], "reference") {
		return Chain{Name: name, Unused: fields[0] == "0"}, true
	}
	if fields[0] != "policy" || !IsName(fields[1]) {
		return Chain{}, false
	}
	c := Chain{Name: name, Policy: fields[1]}
	if len(fields) >= 5 {
		p, ok := parseCount(fields[2])
		b, ok2 := parseCount(fields[4])
		if !ok || !ok2 {
			return Chain{}, false
		}
		c.Counters = Counters{p, b}
	}
	return c, true
}

// parseCount reads a counter; without -x iptables rounds to K, M, G and T, which are powers of 1000.
func parseCount(s string) (uint64, bool) {
	factor := uint64(1)
	if i := strings.IndexByte("KMGTPE", s[len(s)-1]); i >= 0 {
		s = s[:len(s)-1]
		for range i + 1 {
			factor *= 1000
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || factor > 1 && n > 18e18/factor {
		return 0, false
	}
	return n * factor, true
}

// Columns are those that a listing has beside the usual ones; known is false where no header line told.
type Columns struct {
	known, number, verbose bool
}

// ParseColumns reads the header line of a chain's rules.
func ParseColumns(line string) (Columns, bool) {
	fields := strings.Fields(line)
	c := Columns{known: true}
	if len(fields) > 0 && fields[0] == "num" {
		c.number, fields = true, fields[1:]
	}
	if len(fields) > 1 && fields[0] == "pkts" && fields[1] == "bytes" {
		c.verbose, fields = true, fields[2:]
	}
	want := []string{"target", "prot", "opt", "source", "destination"}
	if c.verbose {
		want = []string{"target", "prot", "opt", "in", "out", "source", "destination"}
	}
	return c, slices.Equal(fields, want)
}

// ListingLine is one line of a listing.
type ListingLine struct {
	Rule    Rule // what cannot be read back of it stands in Rule.Unknown as it was listed
	Verbose bool // interfaces were shown; iptables -L without -v hides them
	Number  int  // of the rule in its chain, from --line-numbers; 0 where it is not shown
}

// field is a word of a line with its place.
type field struct {
	text       string
	start, end int
}

func fieldsOf(line string) []field {
	var fields []field
	start := -1
	for i := 0; i <= len(line); i++ {
		blank := i == len(line) || line[i] == ' ' || line[i] == '\t'
		switch {
		case blank && start >= 0:
			fields = append(fields, field{line[start:i], start, i})
			start = -1
		case !blank && start < 0:
			start = i
		}
	}
	return fields
}

// ParseListed reads "[num] [pkts bytes] [target] prot opt [in out] source destination rest". The target is blank for rules without one.
func ParseListed(line string, c Columns) (ListingLine, bool) {
	fields := fieldsOf(line)
	for prot := range min(len(fields), 5) {
		l, ok := parseListedAt(line, fields, prot, c)
		if ok {
			return l, true
		}
	}
	return ListingLine{}, false
}

// parseListedAt reads a line whose protocol is the given field.
func parseListedAt(line string, fields []field, prot int, c Columns) (ListingLine, bool) {
	var l ListingLine
	name, flag := unglue(fields[prot].text)
	at := prot + 1
	opt := flag != ""
	if !opt && at < len(fields) && isOpt(fields[at].text) {
		opt, flag = true, fields[at].text
		at++
	}
	protocol, ok := parseListedProtocol(name)
	if !ok {
		return ListingLine{}, false
	}
	l.Rule.Fragment = fragmentFlags[flag]
	if !l.leading(fields[:prot], c) {
		return ListingLine{}, false
	}
	need := at + 2
	if l.Verbose {
		need += 2
	}
	if len(fields) < need {
		return ListingLine{}, false
	}
	l.Rule.Protocol = protocol
	if l.Verbose {
		var in, out bool
		l.Rule.In, in = parseListedInterface(fields[at].text)
		l.Rule.Out, out = parseListedInterface(fields[at+1].text)
		if !in || !out {
			return ListingLine{}, false
		}
	}
	source, destination := fields[need-2].text, fields[need-1].text
	var known, known2 bool
	l.Rule.Source, known = parseListedAddress(source)
	l.Rule.Destination, known2 = parseListedAddress(destination)
	if !known && !opt || !known2 && !opt {
		return ListingLine{}, false // ip6tables leaves opt blank: then the addresses must show where the columns are
	}
	rest, ok := parseListedRest(&l.Rule, line[fields[need-1].end:])
	if !ok || !known || !known2 {
		l.Rule = Rule{Unknown: formatPartial(&l.Rule, source, known, destination, known2, rest), Counters: l.Rule.Counters}
	}
	return l, true
}

// formatPartial writes a partly known listed rule as iptables-save would. An address that is a name stays as it is. Text that cannot be read
// back stays as it was listed, as the value of a match that does not exist. So no reader mistakes it for known text. Where the target
// prints something, the text may be the target's too.
func formatPartial(r *Rule, source string, sourceKnown bool, destination string, destinationKnown bool, rest string) string {
	var b []byte
	for _, name := range []struct {
		flag, text string
		known      bool
	}{{"-s", source, sourceKnown}, {"-d", destination, destinationKnown}} {
		if name.known {
			continue
		}
		text, not := strings.CutPrefix(name.text, "!")
		b = append(appendNot(b, not), ' ')
		b = append(b, name.flag...)
		b = append(b, ' ')
		b = appendArg(b, "", text)
	}
	listed := ""
	if rest = strings.TrimSpace(rest); rest != "" {
		listed = string(appendQuoted([]byte(" listed "), rest))
	}
	target := r.Target
	r.Target = Target{}
	b = appendSpec(b, r)
	if listed != "" {
		b = append(b, " -m"...)
		b = append(b, listed...)
	}
	r.Target = target
	b = appendSpec(b, &Rule{Target: target})
	if targetExtensions[target.Name].listed != nil {
		b = append(b, listed...)
	}
	return strings.TrimPrefix(string(b), " ")
}

// leading reads what stands before the protocol: [num] [pkts bytes] [target]. Without a header line, the words that are numbers tell which
// of these are there.
func (l *ListingLine) leading(fields []field, c Columns) bool {
	numbers := 0
	if c.known {
		if c.number {
			numbers++
		}
		if c.verbose {
			numbers += 2
		}
	} else {
		for numbers < min(len(fields), 3) && isNumber(fields[numbers].text) {
			numbers++
		}
	}
	if len(fields) < numbers || len(fields) > numbers+1 {
		return false
	}
	for _, f := range fields[:numbers] {
		if !isNumber(f.text) {
			return false
		}
	}
	if numbers%2 == 1 {
		l.Number, _ = strconv.Atoi(fields[0].text)
	}
	if numbers >= 2 {
		l.Verbose = true
		packets, _ := parseCount(fields[numbers-2].text)
		octets, _ := parseCount(fields[numbers-1].text)
		l.Rule.Counters = &Counters{packets, octets}
	}
	if len(fields) > numbers {
		l.Rule.Target.Name = fields[numbers].text
		return IsName(l.Rule.Target.Name) && !strings.HasPrefix(l.Rule.Target.Name, "!")
	}
	return true
}

func isNumber(s string) bool {
	_, ok := parseCount(s)
	return ok
}

var fragmentFlags = map[string]Fragment{"--": AnyFragment, "-f": FurtherFragments, "!f": FirstFragment}

func isOpt(s string) bool {
	_, ok := fragmentFlags[s]
	return ok
}

// unglue parts the prot column from the opt column: before iptables 1.8.8 there is no blank behind a name of five characters or more.
func unglue(text string) (protocol, opt string) {
	if cut := len(text) - 2; cut >= 5 && isOpt(text[cut:]) {
		return text[:cut], text[cut:]
	}
	return text, ""
}

// UnreadableListed returns a rule of which nothing is known but how it was listed.
func UnreadableListed(line string) Rule {
	text := string(appendQuoted(nil, line))
	return Rule{Unknown: "-m listed " + text + " -j " + text}
}

// LooksListed reports whether a line that cannot be read can be one of a listing: it has an opt column where there is one.
func LooksListed(line string) bool {
	fields := fieldsOf(line)
	return len(fields) > 1 && slices.ContainsFunc(fields[1:min(len(fields), 6)], func(f field) bool { return isOpt(f.text) })
}

// parseListedProtocol reads the prot column: a name, or since iptables 1.8.9 with -n a number; "all" and 0 are any.
func parseListedProtocol(s string) (NameMatch, bool) {
	name, not := strings.CutPrefix(s, "!")
	if name == "all" || name == "0" {
		return NameMatch{}, !not
	}
	p, err := packet.ParseProtocol(name)
	return NameMatch{Not: not, Name: p.String()}, err == nil
}

func parseListedInterface(s string) (m NameMatch, ok bool) {
	name, not := strings.CutPrefix(s, "!")
	if name == "*" || name == "any" {
		return NameMatch{}, true
	}
	return NameMatch{Not: not, Name: name}, IsName(name)
}

// parseListedAddress reads an address, a prefix or an address with a mask. Names of hosts are not known; those of a few networks are.
func parseListedAddress(s string) (AddressMatch, bool) {
	text, not := strings.CutPrefix(s, "!")
	if text == "anywhere" {
		return AddressMatch{}, !not
	}
	name, bits, ok := strings.Cut(text, "/")
	if address, known := networkNames[name]; known {
		text = address
		if ok {
			text += "/" + bits
		}
	}
	var m AddressMatch
	ok = parseAddress(&m, not, text)
	return m, ok
}

// maskBits counts the bits of a mask in dotted form; false where it has holes, or is none.
func maskBits(mask string) (int, bool) {
	a, err := netip.ParseAddr(mask)
	if err != nil || !a.Is4() {
		return 0, false
	}
	b := a.As4()
	m := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	n := 0
	for ; m&(1<<31) != 0; m <<= 1 {
		n++
	}
	return n, m == 0
}

// familyOf tells the family of a rule's addresses.
func familyOf(matches ...AddressMatch) int {
	for _, m := range matches {
		switch {
		case !m.Prefix.IsValid():
		case m.Prefix.Addr().Is4():
			return 4
		default:
			return 6
		}
	}
	return 0
}
