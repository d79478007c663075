package inspect

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
)

// Table is a table of rules without the rules.
type Table struct {
	Family  string  `json:"family"`
	Name    string  `json:"name"`
	Dialect string  `json:"dialect"` // "iptables-nft", "iptables-legacy", "nftables", "ebtables"; "" for Azure's
	Chains  []Chain `json:"chains"`
}

// Chain is a chain without its rules. The kernel calls a chain that has a hook.
type Chain struct {
	Name     string `json:"name"`
	Rules    int    `json:"rules"`
	Hook     string `json:"hook,omitempty"`
	Type     string `json:"type,omitempty"`
	Priority int    `json:"priority,omitempty"`
	Policy   string `json:"policy,omitempty"`  // of a chain with a hook
	Partial  bool   `json:"partial,omitempty"` // it may have other rules than those that are known
}

// Rule is one rule as people read it.
type Rule struct {
	Number  int       `json:"number"`
	Text    string    `json:"text"` // as its tool prints it, without counters
	Counted *Counters `json:"counted,omitempty"`
	Targets []string  `json:"targets,omitempty"` // chains that it leads to
	Writer  string    `json:"writer,omitempty"`
	For     string    `json:"for,omitempty"`
}

// Counters are the packets and bytes that a rule applied to.
type Counters struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Page is a part of a chain's rules.
type Page struct {
	Writer string `json:"writer,omitempty"` // of the chain
	For    string `json:"for,omitempty"`
	Offset int    `json:"offset"`
	Rules  []Rule `json:"rules"`
}

// Hit is a rule or, with number 0, a chain that a search found.
type Hit struct {
	Table  int    `json:"table"` // index into the tables
	Chain  int    `json:"chain"`
	Number int    `json:"number"`
	Text   string `json:"text"`
}

// MostRules limits a page, and MostHits the hits of a search.
const (
	MostRules = 200
	MostHits  = 200
)

// Rules returns a machine's tables, those that a packet meets first before the others.
func Rules(h *snapshot.Host) []Table {
	tables := []Table{}
	for _, t := range ordered(h) {
		table := Table{Family: t.Family.String(), Name: termsafe.Text(t.Name), Dialect: string(t.Dialect), Chains: make([]Chain, len(t.Chains))}
		for i, c := range t.Chains {
			table.Chains[i] = Chain{Name: termsafe.Text(c.Name), Rules: len(c.Rules), Partial: c.Partial}
			if b := c.Base; b != nil {
				chain := &table.Chains[i]
				chain.Hook, chain.Type, chain.Priority, chain.Policy = b.Hook.String(), b.Type, b.Priority, c.Policy.String()
			}
		}
		tables = append(tables, table)
	}
	return tables
}

// ordered returns a machine's tables: of IPv4 before IPv6 before bridges, then raw, mangle, nat, filter, then others by name.
func ordered(h *snapshot.Host) []*netfilter.Table {
	if h == nil || h.Rules == nil {
		return nil
	}
	tables := slices.Clone(h.Rules.Tables)
	known := []string{"raw", "mangle", "nat", "filter", "security"}
	rank := func(t *netfilter.Table) int {
		if i := slices.Index(known, t.Name); i >= 0 {
			return i
		}
		return len(known)
	}
	slices.SortStableFunc(tables, func(a, b *netfilter.Table) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name))
	})
	return tables
}

// chainAt returns a chain by the indexes that Rules gave; nil if there is none.
func chainAt(h *snapshot.Host, table, chain int) *netfilter.Chain {
	tables := ordered(h)
	if table < 0 || table >= len(tables) || chain < 0 || chain >= len(tables[table].Chains) {
		return nil
	}
	return tables[table].Chains[chain]
}

// ChainPage returns at most MostRules rules of a chain from an offset on; ok is false where there is no such chain.
func ChainPage(h *snapshot.Host, owners *explain.Owners, table, chain, offset int) (page Page, ok bool) {
	c := chainAt(h, table, chain)
	if c == nil || offset < 0 {
		return page, false
	}
	page = Page{Offset: offset, Rules: []Rule{}}
	page.Writer, page.For = owners.ChainPurpose(c)
	page.For = termsafe.Text(page.For)
	for i := offset; i < min(offset+MostRules, len(c.Rules)); i++ {
		r := &c.Rules[i]
		text, counted := cutCounters(r)
		why := owners.RuleReason(c, r)
		rule := Rule{Number: r.Number, Text: termsafe.Text(text), Counted: counted, Writer: why.Writer, For: termsafe.Text(why.For)}
		for _, to := range explain.Jumps(r) {
			rule.Targets = append(rule.Targets, termsafe.Text(to.Name))
		}
		page.Rules = append(page.Rules, rule)
	}
	return page, true
}

// counter is nft's counter in a rule's text.
var counter = regexp.MustCompile(`\bcounter packets ([0-9]+) bytes ([0-9]+) ?`)

// cutCounters returns a rule's text without counters, and these; nil where the rule has none.
func cutCounters(r *netfilter.Rule) (text string, counted *Counters) {
	if r.Counters != nil {
		return r.Text, &Counters{r.Counters.Packets, r.Counters.Bytes}
	}
	m := counter.FindStringSubmatch(r.Text)
	if m == nil {
		return r.Text, nil
	}
	packets, err := strconv.ParseUint(m[1], 10, 64)
	bytes, err2 := strconv.ParseUint(m[2], 10, 64)
	if err != nil || err2 != nil {
		return r.Text, nil
	}
	return strings.TrimSpace(counter.ReplaceAllLiteralString(r.Text, "counter ")), &Counters{packets, bytes}
}

// Find returns the chains whose names, and the rules whose texts or comments have a word, in any case, and how many more there are.
func Find(h *snapshot.Host, word string) (hits []Hit, more int) {
	hits = []Hit{}
	word = strings.ToLower(word)
	if word == "" {
		return hits, 0
	}
	add := func(hit Hit) {
		if len(hits) == MostHits {
			more++
			return
		}
		hit.Text = termsafe.Text(hit.Text)
		hits = append(hits, hit)
	}
	for i, t := range ordered(h) {
		for j, c := range t.Chains {
			if strings.Contains(strings.ToLower(c.Name), word) {
				add(Hit{Table: i, Chain: j})
			}
			for k := range c.Rules {
				r := &c.Rules[k]
				if strings.Contains(strings.ToLower(r.Text), word) || strings.Contains(strings.ToLower(r.Comment), word) {
					add(Hit{Table: i, Chain: j, Number: r.Number, Text: r.Text})
				}
			}
		}
	}
	return hits, more
}
