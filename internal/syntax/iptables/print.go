package iptables

import (
	"strconv"
	"strings"
	"unicode"
)

// AppendRule appends "-A CHAIN …" without a newline, as iptables-save prints it, with the counters in front when the rule has them.
func AppendRule(b []byte, chain string, r *Rule) []byte {
	if r.Counters != nil {
		b = appendCounters(b, *r.Counters)
		b = append(b, ' ')
	}
	b = append(b, "-A "...)
	b = append(b, chain...)
	return appendSpec(b, r)
}

// Spec gives the rule without "-A CHAIN": what two rules are compared by.
func (r *Rule) Spec() string { return strings.TrimPrefix(string(appendSpec(nil, r)), " ") }

func appendSpec(b []byte, r *Rule) []byte {
	if r.Unknown != "" {
		b = append(b, ' ')
		return append(b, r.Unknown...)
	}
	b = appendAddress(b, "-s", r.Source)
	b = appendAddress(b, "-d", r.Destination)
	b = appendName(b, "-i", r.In)
	b = appendName(b, "-o", r.Out)
	b = appendName(b, "-p", r.Protocol)
	switch r.Fragment {
	case FurtherFragments:
		b = append(b, " -f"...)
	case FirstFragment:
		b = append(b, " ! -f"...)
	}
	for i := range r.Matches {
		b = append(b, " -m "...)
		b = append(b, r.Matches[i].Module...)
		b = appendOptions(b, r.Matches[i].Options)
	}
	if r.Target.Name == "" {
		return b
	}
	if r.Target.Goto {
		b = append(b, " -g "...)
	} else {
		b = append(b, " -j "...)
	}
	b = append(b, r.Target.Name...)
	return appendOptions(b, r.Target.Options)
}

func appendNot(b []byte, not bool) []byte {
	if not {
		return append(b, " !"...)
	}
	return b
}

func appendAddress(b []byte, flag string, m AddressMatch) []byte {
	if !m.Prefix.IsValid() {
		return b
	}
	b = appendNot(b, m.Not)
	b = append(b, ' ')
	b = append(b, flag...)
	b = append(b, ' ')
	return m.Prefix.AppendTo(b)
}

func appendName(b []byte, flag string, m NameMatch) []byte {
	if m.Name == "" {
		return b
	}
	b = appendNot(b, m.Not)
	b = append(b, ' ')
	b = append(b, flag...)
	b = append(b, ' ')
	return append(b, m.Name...)
}

func appendOptions(b []byte, options []Option) []byte {
	for i := range options {
		o := &options[i]
		b = appendNot(b, o.Not)
		b = append(b, " --"...)
		b = append(b, o.Name...)
		if o.Name == "nfacct-name" {
			b = append(b, ' ') // as libxt_nfacct prints it
		}
		for _, arg := range o.Args {
			b = append(b, ' ')
			b = appendArg(b, o.Name, arg)
		}
	}
	return b
}

// textOptions are the options that iptables prints through xtables_save_string: quoted unless all characters are harmless. All other
// values are printed bare, except that a value which would not survive bare is quoted too.
var textOptions = map[string]bool{
	"comment": true, "log-prefix": true, "nflog-prefix": true, "nfacct-name": true, "helper": true, "string": true, "path": true,
}

func appendArg(b []byte, option, arg string) []byte {
	if textOptions[option] && !isHarmless(arg) || !isBare(arg) {
		return appendQuoted(b, arg)
	}
	return append(b, arg...)
}

// isHarmless reports whether xtables_save_string leaves a value without quotes (libxtables/xtables.c).
func isHarmless(s string) bool {
	for i := range len(s) {
		c := s[i]
		harmless := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
		if !harmless {
			return false
		}
	}
	return s != ""
}

func isBare(s string) bool {
	if s == "" || s == "!" {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r == '"' || r == '\'' || r == '\\' })
}

// Quote puts a value into double quotes, as iptables-save does.
func Quote(s string) string { return string(appendQuoted(nil, s)) }

func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if c := s[i]; c == '"' || c == '\\' || c == '\'' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

func appendCounters(b []byte, c Counters) []byte {
	b = append(b, '[')
	b = strconv.AppendUint(b, c.Packets, 10)
	b = append(b, ':')
	b = strconv.AppendUint(b, c.Bytes, 10)
	return append(b, ']')
}

// appendChainLine appends ":NAME POLICY [packets:bytes]" and a newline. In iptables-restore's input it creates the chain or flushes it.
func appendChainLine(b []byte, c *Chain) []byte {
	b = append(b, ':')
	b = append(b, c.Name...)
	b = append(b, ' ')
	if c.Policy == "" {
		b = append(b, '-')
	} else {
		b = append(b, c.Policy...)
	}
	b = append(b, ' ')
	b = appendCounters(b, c.Counters)
	return append(b, '\n')
}

// AppendRules appends a chain's rules, a line each.
func AppendRules(b []byte, c *Chain) []byte {
	for i := range c.Rules {
		b = AppendRule(b, c.Name, &c.Rules[i])
		b = append(b, '\n')
	}
	return b
}

// AppendSave appends tables in the form of iptables-save, without its comment lines.
func AppendSave(b []byte, tables []Table) []byte {
	for i := range tables {
		t := &tables[i]
		b = append(b, '*')
		b = append(b, t.Name...)
		b = append(b, '\n')
		for j := range t.Chains {
			b = appendChainLine(b, &t.Chains[j])
		}
		for j := range t.Chains {
			b = AppendRules(b, &t.Chains[j])
		}
		b = append(b, "COMMIT\n"...)
	}
	return b
}
