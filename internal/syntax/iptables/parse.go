package iptables

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/packet"
)

// ParseError says which line of a dump cannot be read and why.
type ParseError struct {
	Line int // from 1
	Text string
	Err  error
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("parse iptables-save line %d %q: %v", e.Line, e.Text, e.Err)
}

// Unwrap gives the reason.
func (e *ParseError) Unwrap() error { return e.Err }

// Parse reads what iptables-save or ip6tables-save (with or without -c) printed. Rules with matches, targets or options that it does not
// know are kept in Rule.Unknown; lines that are no part of the format are a *ParseError. What it returns shares one copy of the dump.
func Parse(dump []byte) ([]Table, error) {
	p := parser{}
	rest := string(dump)
	for number := 1; len(rest) > 0; {
		size := lineSize(rest)
		line := rest[:size]
		text := strings.TrimRight(line, " \t\r\n")
		if err := p.line(text); err != nil {
			return nil, &ParseError{Line: number, Text: text, Err: err}
		}
		number += strings.Count(line, "\n")
		rest = rest[size:]
	}
	return p.tables, nil
}

// maxQuoted bounds what a quoted value that contains line breaks may have, in bytes: a comment has at most 256 (XT_MAX_COMMENT_LEN), each
// with a backslash.
const maxQuoted = 1024

// lineSize returns the length of the first line, with its end. The line of a rule goes on behind a line break inside double quotes, which
// iptables-save prints as it is.
func lineSize(text string) int {
	size := strings.IndexByte(text, '\n') + 1
	if size == 0 {
		return len(text)
	}
	if text[0] != '-' && text[0] != '[' {
		return size
	}
	quoted := false
	for i := 0; i < len(text) && i < size+maxQuoted; i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++
		case c == '\n' && !quoted:
			return i + 1
		}
	}
	return size // the quote is not closed
}

type parser struct {
	tables []Table
	table  *Table         // nil between COMMIT and the next table
	chains map[string]int // index in table.Chains
	spec   specParser
}

func (p *parser) line(text string) error {
	switch {
	case text == "" || text[0] == '#':
		return nil
	case text[0] == '*':
		return p.begin(text[1:])
	case p.table == nil:
		return fmt.Errorf("stands outside a table; a table begins with *name")
	case text == "COMMIT":
		p.table = nil
		return nil
	case text[0] == ':':
		return p.chain(text)
	default:
		return p.rule(text)
	}
}

func (p *parser) begin(name string) error {
	if p.table != nil {
		return fmt.Errorf("table %s has no COMMIT", p.table.Name)
	}
	if !IsName(name) {
		return fmt.Errorf("no table name")
	}
	p.tables = append(p.tables, Table{Name: name})
	p.table = &p.tables[len(p.tables)-1]
	p.chains = map[string]int{}
	return nil
}

// IsName reports whether a name of a table, chain, module, option or interface can be printed bare.
func IsName(s string) bool {
	return isBare(s) && !strings.HasPrefix(s, "-") && !strings.HasPrefix(s, "#")
}

// ParseChain reads ":NAME POLICY [packets:bytes]", where "-" is no policy and the counters may be missing.
func ParseChain(line string) (c Chain, err error) {
	text, ok := strings.CutPrefix(line, ":")
	fields := strings.Fields(text)
	if !ok || len(fields) < 2 || len(fields) > 3 || !IsName(fields[0]) {
		return c, fmt.Errorf("no chain line; want :NAME POLICY [packets:bytes]")
	}
	if fields[1] != "-" && !IsName(fields[1]) {
		return c, fmt.Errorf("bad policy")
	}
	c.Name, c.Policy = fields[0], strings.TrimPrefix(fields[1], "-")
	if len(fields) == 3 {
		c.Counters, err = ParseCounters(fields[2])
	}
	return c, err
}

func (p *parser) chain(text string) error {
	c, err := ParseChain(text)
	if err != nil {
		return err
	}
	if _, ok := p.chains[c.Name]; ok {
		return fmt.Errorf("chain %s stands here twice", c.Name)
	}
	p.chains[c.Name] = len(p.table.Chains)
	p.table.Chains = append(p.table.Chains, c)
	return nil
}

// ParseCounters reads "[packets:bytes]".
func ParseCounters(text string) (Counters, error) {
	inner, ok := strings.CutPrefix(text, "[")
	inner, ok2 := strings.CutSuffix(inner, "]")
	packets, octets, ok3 := strings.Cut(inner, ":")
	var c Counters
	var err error
	if ok && ok2 && ok3 {
		if c.Packets, err = strconv.ParseUint(packets, 10, 64); err == nil {
			c.Bytes, err = strconv.ParseUint(octets, 10, 64)
		}
	}
	if !ok || !ok2 || !ok3 || err != nil {
		return Counters{}, fmt.Errorf("bad counters %s; want [packets:bytes]", text)
	}
	return c, nil
}

func (p *parser) rule(text string) error {
	var r Rule
	if text[0] == '[' {
		var counters string
		counters, text, _ = strings.Cut(text, " ")
		c, err := ParseCounters(counters)
		if err != nil {
			return err
		}
		r.Counters = &c
	}
	rest, ok := strings.CutPrefix(strings.TrimLeft(text, " \t"), "-A ")
	if !ok {
		return fmt.Errorf("no rule; want -A CHAIN …")
	}
	name, rest, _ := strings.Cut(strings.TrimLeft(rest, " \t"), " ")
	at, ok := p.chains[name]
	if !ok {
		return fmt.Errorf("table %s has no chain %s", p.table.Name, name)
	}
	rest = strings.TrimLeft(rest, " \t")
	if parsed, ok := p.spec.parse(rest); ok {
		parsed.Counters = r.Counters
		r = parsed
	} else {
		r.Unknown = rest
	}
	r.Text = rest
	p.table.Chains[at].Rules = append(p.table.Chains[at].Rules, r)
	return nil
}

// ParseSpec reads a rule's text after "-A CHAIN ". It tells false for what it does not know.
func ParseSpec(text string) (Rule, bool) {
	var s specParser
	return s.parse(text)
}

type word struct {
	text   string
	quoted bool
}

// split cuts a line into words as iptables-restore does: blanks separate, double quotes hold together, and a backslash inside them keeps
// the next character. Single quotes are a shell's, in which a backslash is a character like others. The words are appended. A backslash
// outside quotes, or a quote inside a word, is left to Unknown.
func split(words []word, text string) ([]word, bool) {
	for {
		text = strings.TrimLeft(text, " \t")
		if text == "" {
			return words, true
		}
		if text[0] == '"' || text[0] == '\'' {
			w, rest, ok := unquote(text)
			if !ok {
				return nil, false
			}
			words = append(words, word{w, true})
			text = rest
			continue
		}
		end := 0
		for end < len(text) && text[end] != ' ' && text[end] != '\t' {
			if c := text[end]; c == '"' || c == '\'' || c == '\\' {
				return nil, false
			}
			end++
		}
		words = append(words, word{text[:end], false})
		text = text[end:]
	}
}

func unquote(text string) (inner, rest string, ok bool) {
	quote := text[0]
	if i := strings.IndexByte(text[1:], quote) + 1; i > 0 && (quote == '\'' || strings.IndexByte(text[:i], '\\') < 0) { // as it stands
		rest = text[i+1:]
		return text[1:i], rest, rest == "" || rest[0] == ' ' || rest[0] == '\t'
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		case c == quote:
			rest = text[i+1:]
			return b.String(), rest, rest == "" || rest[0] == ' ' || rest[0] == '\t'
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

// Unquote gives the value of one word of a rule, with its quotes or without any.
func Unquote(word string) string {
	if words, ok := split(nil, word); ok && len(words) == 1 {
		return words[0].text
	}
	return word
}

// specParser reads one rule after the other. Matches, options and their words come out of slabs.
type specParser struct {
	words   []word
	rule    Rule
	matches []Match  // of the rule, the last one without its options
	options []Option // of the last match, or the target once there is one

	line       []word // room for words
	matchRoom  slab[Match]
	optionRoom slab[Option]
	argRoom    slab[string]
}

func (s *specParser) parse(text string) (Rule, bool) {
	words, ok := split(s.line[:0], text)
	if !ok {
		return Rule{}, false
	}
	s.line = words
	return s.parseWords(Rule{}, words)
}

// parseWords reads words on top of a rule that has been read in part.
func (s *specParser) parseWords(r Rule, words []word) (Rule, bool) {
	s.rule, s.words = r, words
	s.matches, s.options = append(s.matches[:0], r.Matches...), append(s.options[:0], r.Target.Options...)
	for len(s.words) > 0 {
		if !s.step() {
			return Rule{}, false
		}
	}
	s.flush()
	s.rule.Matches = s.matchRoom.keep(s.matches)
	return s.rule, true
}

// flush gives the options that have been read to their match or target.
func (s *specParser) flush() {
	if len(s.options) == 0 {
		return
	}
	options := s.optionRoom.keep(s.options)
	s.options = s.options[:0]
	if s.rule.Target.Name != "" {
		s.rule.Target.Options = options
		return
	}
	last := &s.matches[len(s.matches)-1]
	if last.Options != nil {
		options = append(last.Options, options...) // copies: slabs give no room behind
	}
	last.Options = options
}

func (s *specParser) next() (string, bool) {
	if len(s.words) == 0 {
		return "", false
	}
	w := s.words[0]
	s.words = s.words[1:]
	return w.text, true
}

// step reads one flag or option with its values; false means that it is not known.
func (s *specParser) step() bool {
	not := false
	if w := s.words[0]; w.text == "!" && !w.quoted {
		not = true
		s.words = s.words[1:]
	}
	if len(s.words) == 0 || s.words[0].quoted {
		return false
	}
	flag, _ := s.next()
	if name, ok := strings.CutPrefix(flag, "--"); ok {
		short := shortFlags[flag]
		if short == "" || flag == "--proto" && len(s.matches) > 0 && hasProto(s.matches[len(s.matches)-1].Module) {
			return s.option(not, name)
		}
		flag = short
	}
	if flag == "-f" {
		s.rule.Fragment = FurtherFragments
		if not {
			s.rule.Fragment = FirstFragment
		}
		return true
	}
	if !not && flag != "-m" && flag != "-j" && flag != "-g" {
		not = s.oldNot()
	}
	value, ok := s.next()
	if !ok {
		return false
	}
	switch flag {
	case "-s":
		return parseAddress(&s.rule.Source, not, value)
	case "-d":
		return parseAddress(&s.rule.Destination, not, value)
	case "-i":
		return setName(&s.rule.In, not, value)
	case "-o":
		return setName(&s.rule.Out, not, value)
	case "-p":
		return setName(&s.rule.Protocol, not, strings.ToLower(value))
	case "-m":
		return !not && s.module(value)
	case "-j", "-g":
		return !not && s.target(value, flag == "-g")
	}
	return false
}

func setName(m *NameMatch, not bool, name string) bool {
	if m.Name != "" || !IsName(name) {
		return false
	}
	*m = NameMatch{Not: not, Name: name}
	return true
}

func parseAddress(m *AddressMatch, not bool, text string) bool {
	if m.Prefix.IsValid() {
		return false
	}
	if address, mask, ok := strings.Cut(text, "/"); ok && strings.Contains(mask, ".") { // as iptables before 1.4 printed
		if bits, contiguous := maskBits(mask); contiguous {
			text = address + "/" + strconv.Itoa(bits)
		}
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" || addr.Is4In6() {
			return false
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if prefix.Addr().Is4In6() {
		return false
	}
	if prefix.Bits() == 0 && !not {
		return true // every address: iptables prints nothing
	}
	*m = AddressMatch{Not: not, Prefix: prefix.Masked()}
	return true
}

func (s *specParser) module(name string) bool {
	if _, ok := matchExtensions[name]; !ok || s.rule.Target.Name != "" {
		return false
	}
	s.flush()
	s.matches = append(s.matches, Match{Module: name})
	return true
}

func (s *specParser) target(name string, jump bool) bool {
	if s.rule.Target.Name != "" || !IsName(name) {
		return false
	}
	s.flush()
	s.rule.Target = Target{Name: name, Goto: jump}
	return true
}

func (s *specParser) option(not bool, name string) bool {
	name, n, ok := s.owner(name)
	if ok && n > 0 && !not && s.oldNot() {
		not = true
	}
	if !ok || len(s.words) < n {
		return false
	}
	o := Option{Not: not, Name: name, Args: s.argRoom.take(n)}
	for i := range o.Args {
		o.Args[i], _ = s.next()
	}
	s.options = append(s.options, o)
	return true
}

// oldNot takes the "!" that iptables before 1.4.3 printed between a flag and its value.
func (s *specParser) oldNot() bool {
	old := len(s.words) > 0 && s.words[0].text == "!" && !s.words[0].quoted
	if old {
		s.words = s.words[1:]
	}
	return old
}

// owner finds whose option it is: the target's once there is one, else the last module's, else the protocol's own match, which
// iptables loads by itself. It gives the whole name and tells how many words follow.
func (s *specParser) owner(name string) (full string, words int, ok bool) {
	if t := &s.rule.Target; t.Name != "" {
		return targetExtensions[t.Name].options.find(name)
	}
	if n := len(s.matches); n > 0 {
		if full, words, ok = matchExtensions[s.matches[n-1].Module].options.find(name); ok {
			return full, words, true
		}
	}
	module := s.rule.Protocol.Name
	if p, _ := packet.ParseProtocol(module); p == packet.ICMPv6 {
		module = "icmp6"
	}
	if full, words, ok = matchExtensions[module].options.find(name); !ok || s.rule.Protocol.Not {
		return "", 0, false
	}
	for i := range s.matches {
		if s.matches[i].Module == module {
			return "", 0, false
		}
	}
	return full, words, s.module(module)
}
