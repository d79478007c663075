package iptables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// The names of the tables, in the order in which a packet meets them at PREROUTING.
const (
	Raw    = "raw"
	Mangle = "mangle"
	NAT    = "nat"
	Filter = "filter"
)

// Table is one table with its chains, in the order of the dump.
type Table struct {
	Name   string
	Chains []Chain
}

// Chain finds a chain by name; nil when there is none.
func (t *Table) Chain(name string) *Chain {
	for i := range t.Chains {
		if t.Chains[i].Name == name {
			return &t.Chains[i]
		}
	}
	return nil
}

// Chain is a built-in chain (Policy is ACCEPT or DROP) or a user's chain (Policy is empty, printed as "-").
type Chain struct {
	Name     string
	Policy   string
	Counters Counters
	Rules    []Rule
	Unused   bool // nothing refers to it, by its listing
	Partial  bool // it may have other rules, anywhere, than those that are shown
}

// Counters are a rule's or a policy's packets and bytes.
type Counters struct {
	Packets, Bytes uint64
}

// Rule is one rule. The zero value of a field means that the rule does not look at it.
type Rule struct {
	Source, Destination AddressMatch
	In, Out             NameMatch // interface names; a trailing "+" matches any suffix
	Protocol            NameMatch // "tcp", "udp", "icmp", … or a number
	Fragment            Fragment
	Matches             []Match
	Target              Target
	// Counters is nil where the dump had none (iptables-save without -c).
	Counters *Counters
	// Unknown, when not empty, is everything after "-A CHAIN " to the letter, and all other fields but Counters and Text are zero:
	// the parser met a match, target or option that it does not know.
	Unknown string
	// Doubt says, where not empty, why the rule may have a test that is not shown, or may not be there at all. Nothing is printed from it.
	Doubt string
	// DoubtsRule says that the Doubt is about whether the rule exists.
	DoubtsRule bool
	// Text is the rule as Parse read it, without "-A CHAIN "; "" for rules from elsewhere. It shares the dump's memory, and nothing is
	// printed from it.
	Text string
}

// AddressMatch is -s or -d. An invalid Prefix (the zero value) matches every address.
type AddressMatch struct {
	Not    bool
	Prefix netip.Prefix
}

// NameMatch is -i, -o or -p. An empty Name matches everything.
type NameMatch struct {
	Not  bool
	Name string
}

// Fragment is the -f flag: second and further fragments of IPv4 packets.
type Fragment uint8

// The three states of the -f flag.
const (
	AnyFragment      Fragment = iota
	FurtherFragments          // -f
	FirstFragment             // ! -f
)

// Match is one -m MODULE with its options in the order of the text.
type Match struct {
	Module  string
	Options []Option
}

// Option finds an option of the match by name (without dashes).
func (m Match) Option(name string) (Option, bool) { return findOption(m.Options, name) }

// Option is one option of a match or target: Name is without its dashes; Not tells of a "!" in front; Args are unquoted.
type Option struct {
	Not  bool
	Name string
	Args []string
}

// Target is -j NAME or, with Goto, -g NAME, with its options. An empty Name means that the rule only counts and notes (and sets marks of
// its matches, as "recent" does).
type Target struct {
	Name    string
	Goto    bool
	Options []Option
}

// Option finds an option of the target by name (without dashes).
func (t Target) Option(name string) (Option, bool) { return findOption(t.Options, name) }

func findOption(options []Option, name string) (Option, bool) {
	for _, o := range options {
		if o.Name == name {
			return o, true
		}
	}
	return Option{}, false
}

// Comment returns the text of the rule's last comment match, or "": of felix's two the first is a hash.
func (r *Rule) Comment() string {
	for _, m := range slices.Backward(r.Matches) {
		if m.Module != "comment" {
			continue
		}
		if o, ok := m.Option("comment"); ok && len(o.Args) == 1 {
			return o.Args[0]
		}
	}
	return ""
}

// Opt makes an option.
func Opt(name string, args ...string) Option { return Option{Name: name, Args: args} }

// NotOpt makes a negated option.
func NotOpt(name string, args ...string) Option { return Option{Not: true, Name: name, Args: args} }

// Host returns a match of a single address.
func Host(a netip.Addr) AddressMatch { return AddressMatch{Prefix: netip.PrefixFrom(a, a.BitLen())} }

// Jump returns the target -j name.
func Jump(name string, options ...Option) Target { return Target{Name: name, Options: options} }

// CommentMatch returns -m comment --comment text.
func CommentMatch(text string) Match {
	return Match{Module: "comment", Options: []Option{Opt("comment", text)}}
}

// RoundedProbability gives 1/n as the statistic match keeps and prints it when it was asked for with that many decimal places: an integer
// of 2^-31, printed with eleven places (iptables extensions/libxt_statistic.c).
func RoundedProbability(n, places int) string {
	asked, _ := strconv.ParseFloat(strconv.FormatFloat(1/float64(n), 'f', places, 64), 64)
	kept := uint64(asked*(1<<31) + 0.5)
	return strconv.FormatFloat(float64(kept)/(1<<31), 'f', 11, 64)
}

// Family reports whether the rule is for 4, IPv4, or 6, IPv6: by addresses, by ICMP's kind and by what a rule is translated to; 0 where
// nothing tells.
func (r *Rule) Family() int {
	if f := familyOf(r.Source, r.Destination); f != 0 {
		return f
	}
	switch r.Protocol.Name {
	case "icmp":
		return 4
	case "ipv6-icmp":
		return 6
	}
	for _, name := range []string{"to-destination", "to-source"} {
		if o, ok := r.Target.Option(name); ok && len(o.Args) == 1 {
			if strings.Count(o.Args[0], ":") > 1 {
				return 6
			}
			return 4
		}
	}
	return 0
}
