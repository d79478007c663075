package explain

import (
	"cmp"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// How rules look, in the syntax of iptables and of nft.
var (
	commentText = regexp.MustCompile(`(?:^| )comment "([^"]*)"`)
	hashed      = regexp.MustCompile(`^(cali:[^ ;]+);(?: (.+))?$`)
	// noise is what a rule's text has beside its tests: comments (shown apart), the loading of the protocol's own match, counters. iptables
	// puts a backslash before quotes and backslashes inside a comment.
	noise = regexp.MustCompile(`-m comment --comment ("([^"\\]|\\.)*"|\S+) ?|comment "[^"]*" ?|-m (tcp|udp|sctp) |` +
		`counter packets [0-9]+ bytes [0-9]+ ?`)
	effect     = regexp.MustCompile(`(^| )(-j|-g|--jump|--goto) `)
	sourceNAT  = regexp.MustCompile(`-j (?:MASQUERADE|SNAT|NETMAP)\b|\b(?:masquerade|snat)\b`)
	fromSource = regexp.MustCompile(`(?:^|[^!] )-s (\S+)|(?:^| )saddr ([0-9a-f.:]+(?:/[0-9]+)?) `)
)

// markTests are texts of rules that test a mark, and markWords what is compared where statements do, by the field's name in packet.Changes.
var (
	markTests = map[string]*regexp.Regexp{
		"mark":     regexp.MustCompile(`-m mark |meta mark (!= |== |and |& |\{|@|0x|[0-9])`),
		"connmark": regexp.MustCompile(`-m connmark |ct mark (!= |== |and |& |\{|@|0x|[0-9])`),
	}
	markWords = map[string]*regexp.Regexp{"mark": regexp.MustCompile(`^mark\b`), "connmark": regexp.MustCompile(`^connection mark\b`)}
)

// otherSource tells of rules for a source that is not the packet's.
func otherSource(r *netfilter.Rule, p *packet.Packet) bool {
	m := fromSource.FindStringSubmatch(r.Text)
	if m == nil {
		return false
	}
	text := cmp.Or(m[1], m[2])
	if a, err := netip.ParseAddr(text); err == nil {
		return a != p.Source
	}
	prefix, err := netip.ParsePrefix(text)
	return err == nil && !prefix.Contains(p.Source)
}

// doesOrPolicy returns what the rule does, or for the end of a chain its policy.
func doesOrPolicy(v *netfilter.Visit) string {
	if v.Rule == nil {
		return strings.ToUpper(v.Verdict.Kind.String())
	}
	return does(v.Rule)
}

// targetOf returns the rule's target without its options: those of a translation show in what it did.
func targetOf(v *netfilter.Visit) string {
	if v.Rule != nil && effect.MatchString(ruleWithoutComments(v.Rule)) {
		name, _, _ := strings.Cut(does(v.Rule), " ")
		return name
	}
	return doesOrPolicy(v)
}

// natChain reports whether a chain translates: it stands in a table "nat", or it is a base chain of type nat.
func natChain(c *netfilter.Chain) bool {
	return c.Table != nil && c.Table.Name == "nat" || c.Base != nil && c.Base.Type == "nat"
}

// reference returns "nat KUBE-SERVICES 4", or "bridge nat PREROUTING 2".
func reference(v *netfilter.Visit) string { return ruleRef(v.Chain, v.Rule) }

// ruleRef names the family where the table's name would be taken for that of an IP table.
func ruleRef(c *netfilter.Chain, r *netfilter.Rule) string {
	if f := c.Table.Family; f == netfilter.Bridge || f == netfilter.ARP || f == netfilter.Netdev {
		return f.String() + " " + c.Ref(r)
	}
	return c.Ref(r)
}

// shapeOf names a rule without what differs between endpoints.
func (s *signatures) shapeOf(v *netfilter.Visit) string {
	if s.role(v.Chain) == attribution.Endpoint && v.Rule != nil {
		return s.pattern(v.Chain) + strconv.Itoa(v.Rule.Number)
	}
	if s.role(v.Verdict.Chain) == attribution.Endpoint {
		return v.Chain.Name + " to " + s.pattern(v.Verdict.Chain)
	}
	return reference(v)
}

// asks returns the bits of a mark, "mark" or the connection's "connmark", that decided that the rule applies: it tests them, or a rule
// before it in the same chain does. 0 where none did.
func asks(v *netfilter.Visit, field string) uint32 {
	if v.Rule == nil {
		return 0
	}
	bits := asksMark(v.Rule, field)
	if bits != 0 || v.Chain.Base != nil {
		return bits
	}
	for i := range v.Chain.Rules {
		if r := &v.Chain.Rules[i]; r.Number < v.Rule.Number {
			bits |= asksMark(r, field)
		}
	}
	return bits
}

// comment returns a rule's comment. Readers that know the syntax set Rule.Comment; rules in nft's syntax that were kept verbatim have it in
// the text. Of felix's hash and words it is the words, where there are any: in iptables mode these are two comments, in nftables mode one.
func comment(r *netfilter.Rule) string {
	if r == nil {
		return ""
	}
	text := r.Comment
	if text == "" {
		if all := commentText.FindAllStringSubmatch(r.Text, -1); all != nil {
			text = all[len(all)-1][1]
		}
	}
	if m := hashed.FindStringSubmatch(text); m != nil {
		return cmp.Or(m[2], m[1])
	}
	return text
}

// ruleWithoutComments returns a rule's text without comments.
func ruleWithoutComments(r *netfilter.Rule) string {
	return strings.TrimSpace(noise.ReplaceAllString(r.Text, ""))
}

// does returns what a rule does: its target with options, or the whole rule where the syntax has no targets.
func does(r *netfilter.Rule) string {
	text := ruleWithoutComments(r)
	if at := effect.FindStringIndex(text); at != nil {
		return text[at[1]:]
	}
	return text
}

// asksMark returns the bits of a mark that a rule tests. It returns all bits where the tested bits are unknown.
func asksMark(r *netfilter.Rule, field string) uint32 {
	var bits uint32
	for _, s := range r.Statements {
		bits |= markBits(s, field)
	}
	if bits == 0 && markTests[field].MatchString(r.Text) {
		return ^uint32(0)
	}
	return bits
}

// markBits returns those that one statement tests.
func markBits(s netfilter.Statement, field string) uint32 {
	const all = ^uint32(0)
	value, mask := all, all
	switch m := s.(type) {
	case *netfilter.MatchMark:
		if m.Connection != (field == "connmark") {
			return 0
		}
		value, mask = m.Value, m.Mask
	case *netfilter.Compare:
		if !markWords[field].MatchString(m.Left.String()) {
			return 0
		}
		if len(m.Right) == 1 && m.Right[0].Certain() {
			value = uint32(m.Right[0].Low.Lo)
		}
		if b, ok := m.Left.(*netfilter.Bitwise); ok && b.Op == netfilter.BitAnd {
			if k, ok := b.Right.(*netfilter.Constant); ok && len(k.Values) == 1 {
				mask = uint32(k.Values[0].Low.Lo)
			}
		}
	default:
		return 0
	}
	if mask != all {
		return mask
	}
	return cmp.Or(value, all) // the whole mark: of one that is not zero, the bits that are set
}
