// Package attribution is how whoever writes rules signs them: a table of its chains and rules, beside the generator, that says what each is
// there for. Readers ask a Book of such tables, and need no knowledge of chains.
package attribution

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Writer is who writes rules, and what they are there for. Its patterns, and those of its parts, are plain text in which {word} stands for
// one word (a run of characters without a space, or what Words says) and * for anything.
type Writer struct {
	Name   string // as people know it: "kube-proxy"
	File   string // of the generator, from the repository's root; "" for rules that only programs of others write
	Words  map[string]string
	Chains []Chain
	// Always is what it writes on every machine, whatever is in its objects, as input for iptables-restore --noflush: chains that hold the
	// same rules everywhere, and the rules that lead to its chains (-I at the head of theirs, -A at the end).
	Always string
	// Forms are other forms of those chains, of other versions for example, as input for iptables-restore --noflush.
	Forms string
	// Comments are patterns of rules' comments, for the fields that they have; the first that fits counts.
	Comments []string
	// Know adds what the writer's objects say to the fields of a rule; nil where there is nothing more to know.
	Know func(*Rule, Fields)
}

// Chain is what chains with names of one pattern are there for.
type Chain struct {
	Family Family
	Table  string // a pattern; "" for any table
	Name   string // a pattern
	Role   Role
	For    string
	Rules  []Line
}

// Family is what a chain looks at.
type Family uint8

// The families. A chain of IP packets may be of either version's, or of both.
const (
	IP Family = iota
	Bridge
)

// Line is what rules of one pattern are there for: rules that lead to To, a chain or a target, have the comment Comment, and Text
// somewhere. A pattern that is empty fits everything.
type Line struct {
	To, Comment, Text string
	// For is the reason. {word} stands for the field of that name, and a rule without it does not fit. Of [A|B] it has the first of the
	// texts whose fields are known, or nothing.
	For string
	// Not is the reason why a packet passes such a rule; "" where For says it.
	Not string
}

// Role is what readers have to know about a chain to tell what is worth telling.
type Role uint8

// The roles.
const (
	NoRole         Role = iota
	Dispatch            // finds the service that a packet is for
	Balances            // chooses where a packet goes: a jump there is a decision
	BalancesLocal       // the same, among the node's own endpoints only
	LoadBalancer        // the same, by the rule of a load balancer: people call the machine that
	Endpoint            // leads to one endpoint
	MasqueradeMark      // marks packets to be masqueraded, for whoever jumps there
	DropMark            // marks packets to be dropped
	Policy              // a network security group: who returns from it is allowed
	Outbound            // Azure's own translation of what leaves it
	NetworkPolicy       // a network policy engine decides there about what pods send or receive
	PolicyList          // asks network policies one after the other, each a chain that has the field {policy}
)

// Fields are what the words of patterns stand for in a rule, and what is known beside; without braces.
type Fields map[string]string

// Rule is a rule as a reader meets it.
type Rule struct {
	Family              Family
	Table, Chain        string
	To                  string     // the chain that it led to; "" for what its text says
	Text, Comment       string     // Text as its tool prints it, without "-A CHAIN"
	Passed              bool       // it did not apply to the packet
	Source, Destination netip.Addr // the packet's, before the rule; zero where it is not known
	Protocol            string     // "tcp"; "" where it is not known
	Port                uint16     // the destination's; 0 where it is not known, or is a span
	Translated          string     // the end that the rule gave the packet as its destination
	Drawn               string     // the number that the kernel drew by chance for the rule
	Known               Fields     // what the rules around it say
}

// Reason is why a rule exists. Its Writer is empty where no component is known to write such rules.
type Reason struct {
	Writer, File string
	For          string
	Fields       Fields
	Line         *Line // that fits
}

// Book asks writers, one after the other.
type Book struct {
	Writers []Writer
	// Name says whose an address with a port is, for the field {owner} of what a rule says of {endpoint}; nil where it is unknown.
	Name func(endpoint string) string

	mu     sync.Mutex
	places map[chainKey][]entry
}

// chainKey names a chain, entry a writer's words about it.
type (
	chainKey struct {
		family      Family
		table, name string
	}
	entry struct {
		*Writer
		*Chain
		fields Fields
	}
)

// Chain finds whose a chain is, by the first pattern that fits; nil where none does. With table "" the chain may be in any.
func (b *Book) Chain(family Family, table, name string) *Chain {
	if all := b.entries(chainKey{family, table, name}); len(all) > 0 {
		return all[0].Chain
	}
	return nil
}

// Describe returns who writes a chain, and what it is there for; "" where no writer's pattern fits, or its words need more than the name.
func (b *Book) Describe(family Family, table, name string) (writer, purpose string) {
	for _, e := range b.entries(chainKey{family, table, name}) {
		if said, all := maps.Clone(e.fields).Fill(e.For); all && said != "" {
			return e.Writer.Name, said
		}
		if writer == "" {
			writer = e.Writer.Name
		}
	}
	return writer, ""
}

// Part is a piece of a chain's name: the writer's own text, or what a word of its pattern stands for.
type Part struct {
	Text string
	Word string // "" for the writer's own text
	Free bool   // the word stands for more than a few texts of the writer's own
}

// Parts splits a chain's name by the first pattern that fits and is not just a word. It returns nil where no writer has such names.
func (b *Book) Parts(name string) []Part {
	for i := range b.Writers {
		w := &b.Writers[i]
		for j := range w.Chains {
			if p := w.Chains[j].Name; !justWord.MatchString(p) {
				if parts := w.parts(p, name); parts != nil {
					return parts
				}
			}
		}
	}
	return nil
}

func (w *Writer) parts(p, name string) []Part {
	pattern := w.pattern(p, whole)
	at := pattern.FindStringSubmatchIndex(name)
	if at == nil {
		return nil
	}
	var parts []Part
	end := 0
	for i, word := range pattern.SubexpNames() {
		if word == "" {
			continue
		}
		is := w.Words[word]
		parts = append(parts, Part{Text: name[end:at[2*i]]},
			Part{Text: name[at[2*i]:at[2*i+1]], Word: word, Free: is == "" || strings.ContainsAny(is, `[\.*+?(`)})
		end = at[2*i+1]
	}
	return append(parts, Part{Text: name[end:]})
}

// entries returns all that fit a chain.
func (b *Book) entries(at chainKey) []entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	all, known := b.places[at]
	if known {
		return all
	}
	for i := range b.Writers {
		w := &b.Writers[i]
		for j := range w.Chains {
			if f := w.chain(&w.Chains[j], at.family, at.table, at.name); f != nil {
				all = append(all, entry{w, &w.Chains[j], f})
			}
		}
	}
	if b.places == nil {
		b.places = map[chainKey][]entry{}
	}
	b.places[at] = all
	return all
}

// chain gives the fields of a chain's name, nil if it does not fit.
func (w *Writer) chain(c *Chain, family Family, table, name string) Fields {
	f := Fields{}
	if c.Family == family && (c.Table == "" || table == "" || f.match(w.pattern(c.Table, whole), table)) && f.match(w.pattern(c.Name, whole),
		name) {
		return f
	}
	return nil
}

// Said returns the fields of a rule that its own text and its chain's name have, whatever else is known.
func (b *Book) Said(r *Rule) Fields {
	f := Fields{}
	b.lines(r, func(_ *Writer, _ *Line, said Fields) bool { f = said; return true })
	return f
}

// Sign returns why a rule exists; ok is false where no writer has a reason for it.
func (b *Book) Sign(r *Rule) (reason Reason, ok bool) {
	b.lines(r, func(w *Writer, l *Line, f Fields) bool {
		for k, v := range r.Known {
			if _, said := f[k]; !said {
				f[k] = v
			}
		}
		if w.Know != nil {
			w.Know(r, f)
		}
		if end := f["endpoint"]; end != "" && b.Name != nil {
			f.Set("owner", b.Name(end))
		}
		text := l.For
		if r.Passed && l.Not != "" {
			text = l.Not
		}
		said, all := f.Fill(text)
		if !all {
			return false
		}
		reason, ok = Reason{w.Name, w.File, said, f, l}, true
		return true
	})
	return reason, ok
}

// TableWriter names a table, by a pattern or "" for any, and the writer of a chain in it.
type TableWriter struct{ Table, Writer string }

// Tables returns where a rule's chain may stand, for a rule of which the table is not known: where a line names what it leads to, then
// where one fits otherwise.
func (b *Book) Tables(r *Rule) []TableWriter {
	var named, fits []TableWriter
	for _, e := range b.entries(chainKey{r.Family, r.Table, r.Chain}) {
		in := TableWriter{e.Chain.Table, e.Writer.Name}
		for i := range e.Rules {
			switch l := &e.Rules[i]; {
			case !e.fits(l, r.To, r, maps.Clone(e.fields)):
			case l.To != "":
				named = append(named, in)
			default:
				fits = append(fits, in)
			}
		}
	}
	return slices.Concat(named, fits)
}

// lines calls found for each line that fits a rule, until it says that this is it.
func (b *Book) lines(r *Rule, found func(*Writer, *Line, Fields) bool) {
	to := r.To
	if to == "" {
		to = target(r.Text)
	}
	for _, e := range b.entries(chainKey{r.Family, r.Table, r.Chain}) {
		for i := range e.Rules {
			l, f := &e.Rules[i], maps.Clone(e.fields)
			if !e.fits(l, to, r, f) {
				continue
			}
			for _, c := range e.Comments {
				if r.Comment != "" && f.match(e.pattern(c, whole), r.Comment) {
					break
				}
			}
			if found(e.Writer, l, f) {
				return
			}
		}
	}
}

func (w *Writer) fits(l *Line, to string, r *Rule, f Fields) bool {
	return (l.To == "" || f.match(w.pattern(l.To, whole), to)) &&
		(l.Comment == "" || f.match(w.pattern(l.Comment, whole), r.Comment)) &&
		(l.Text == "" || f.match(w.pattern(l.Text, words), r.Text))
}

var (
	quoted  = regexp.MustCompile(`"(?:\\.|[^"\\])*"|\{[^}]*\}`) // and the elements of maps
	leads   = regexp.MustCompile(`(?:^| )(?:-j|-g|--jump|--goto|jump|goto) (\S+)`)
	verdict = regexp.MustCompile(`(?:^| )(accept|drop|return|reject|masquerade|dnat|snat|notrack)\b`)
)

// target returns what a rule's text leads to: a chain, or a target of the kernel's; of nft's verdicts the last.
func target(text string) string {
	text = quoted.ReplaceAllString(text, "")
	if m := leads.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	if all := verdict.FindAllStringSubmatch(text, -1); all != nil {
		return all[len(all)-1][1]
	}
	return ""
}

// match adds what a pattern's words stand for in a text; false where it does not fit, or a word stands for something else already.
func (f Fields) match(pattern *regexp.Regexp, text string) bool {
	m := pattern.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	for i, word := range pattern.SubexpNames() {
		if word == "" {
			continue
		}
		if is, ok := f[word]; ok && is != m[i] {
			return false
		}
		f[word] = m[i]
	}
	return true
}

// Set adds a field that is known.
func (f Fields) Set(word, value string) {
	if value != "" {
		f[word] = value
	}
}

var (
	word     = regexp.MustCompile(`\{(\w+)\}`)
	justWord = regexp.MustCompile(`^\{\w+\}$`)
	choice   = regexp.MustCompile(`\[([^\[\]]*\{[^\[\]]*)\]`)
)

// Fill puts fields into a text of Line.For's form; all is false where one is not known.
func (f Fields) Fill(text string) (filled string, all bool) {
	put := func(text string) (string, bool) {
		known := true
		return word.ReplaceAllStringFunc(text, func(w string) string {
			v, ok := f[w[1:len(w)-1]]
			known = known && ok
			return v
		}), known
	}
	text = choice.ReplaceAllStringFunc(text, func(c string) string {
		for _, one := range strings.Split(c[1:len(c)-1], "|") {
			if said, known := put(one); known {
				return strings.NewReplacer("{", "\x00", "}", "\x01").Replace(said) // what is put in is no pattern
			}
		}
		return ""
	})
	text, all = put(text)
	return strings.NewReplacer("\x00", "{", "\x01", "}").Replace(text), all
}

// Where a pattern has to fit.
const (
	whole = "^(?:%s)$"
	words = "(?:^| )(?:%s)(?: |$)"
)

// patterns are those that were compiled, by their text.
var patterns sync.Map

func (w *Writer) pattern(p, where string) *regexp.Regexp {
	key := w.Name + "\x00" + where + "\x00" + p
	if re, ok := patterns.Load(key); ok {
		return re.(*regexp.Regexp)
	}
	var text strings.Builder
	for rest := p; rest != ""; {
		at := word.FindStringSubmatchIndex(rest)
		if at == nil {
			at = []int{len(rest), len(rest), len(rest), len(rest)}
		}
		text.WriteString(strings.ReplaceAll(regexp.QuoteMeta(rest[:at[0]]), `\*`, ".*"))
		if name := rest[at[2]:at[3]]; name != "" {
			is := w.Words[name]
			if is == "" {
				is = `\S+`
			}
			fmt.Fprintf(&text, "(?P<%s>%s)", name, is)
		}
		rest = rest[at[1]:]
	}
	re := regexp.MustCompile(fmt.Sprintf(where, text.String()))
	patterns.Store(key, re)
	return re
}

// In gives the chains of one table.
func In(table string, chains ...Chain) []Chain {
	chains = slices.Clone(chains)
	for i := range chains {
		chains[i].Table = table
	}
	return chains
}
