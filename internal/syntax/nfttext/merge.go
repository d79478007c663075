package nfttext

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// Line is a line of the pasted text.
type Line struct {
	Number int
	Text   string
}

// Block is a table, a chain without its table, or a command.
type Block struct {
	Lines []Line
	// Family and Table are those of a chain that stands alone, where a command before it names them.
	Family, Table string
	Command       bool
	Whole         bool // a command listed the whole table
}

var (
	// TableLine begins a table.
	TableLine = regexp.MustCompile(`^(?:(?:add|create)\s+)?table\s+(?:(ip|ip6|inet|bridge|arp|netdev)\s+)?(\S+)\s*\{`)
	// ChainLine begins a chain.
	ChainLine = regexp.MustCompile(`^chain\s+([\w.-]+)\s*\{`)
	// CommandLine changes rules: "add rule ip nat postrouting masquerade". A block has one that adds something.
	CommandLine = regexp.MustCompile(`^(add|create|insert|delete|destroy|replace|flush|reset|rename)\s+(table|chain|rule|set|map|element|flowtable|ruleset|counter|quota)\b\s*` +
		`(?:(ip|ip6|inet|bridge|arp|netdev)\b\s*)?([\w.-]+)?(?:\s+([\w.-]+))?(.*)$`)
	hookLine   = regexp.MustCompile(`\btype\s+(\w+)\s+hook\s+\w+`)
	calls      = regexp.MustCompile(`\b(?:jump|goto)\s+([\w.-]+)`)
	familyWord = regexp.MustCompile(`\b(ip6?)\s+(?:[sd]addr|protocol|nexthdr)`)
)

// Braces counts those that a line opens, less those that it closes, outside of quotation marks and comments.
func Braces(line string) int {
	n, quoted := 0, false
	for _, r := range line {
		switch {
		case r == '"':
			quoted = !quoted
		case quoted:
		case r == '#':
			return n
		case r == '{':
			n++
		case r == '}':
			n--
		}
	}
	return n
}

// table is one with its chains, sets and other items, in order.
type table struct {
	family, name string
	items        []item
}

type item struct {
	key   string // "chain NAME"
	lines []Line
	block int
}

func (it *item) text() string {
	var b strings.Builder
	for _, l := range it.lines {
		b.WriteString(l.Text + "\n")
	}
	return b.String()
}

// file joins all blocks.
type file struct {
	Result
	defines  []Line
	tables   []*table
	commands []Line
}

// table returns a table, which it makes where there is none.
func (f *file) table(family, name string) *table {
	if t := f.find(family, name); t != nil {
		return t
	}
	t := &table{family: family, name: name}
	f.tables = append(f.tables, t)
	return t
}

// put adds an item. The same one in an earlier block shows an earlier state.
func (f *file) put(t *table, it item) {
	for i := range t.items {
		if old := &t.items[i]; old.key == it.key && old.block != it.block {
			for _, l := range old.lines {
				f.Earlier = append(f.Earlier, l.Number)
			}
			*old = it
			return
		}
	}
	t.items = append(t.items, it)
}

// merge puts blocks together: they add up, and only the same chain or set shown twice is a later state.
func merge(blocks []Block) *file {
	f := &file{}
	for n, b := range blocks {
		switch first := strings.TrimSpace(b.Lines[0].Text); {
		case b.Command:
		case strings.HasPrefix(first, "define "):
			f.defines = append(f.defines, b.Lines...)
		case TableLine.MatchString(first):
			m := TableLine.FindStringSubmatch(first)
			f.takeApart(f.table(cmp.Or(m[1], "ip"), m[2]), b.Lines, n, 1)
		default:
			family, name := b.place(f)
			f.takeApart(f.table(family, name), b.Lines, n, 0)
		}
	}
	f.unhookDormant()
	for n, b := range blocks {
		if b.Command {
			f.run(b.Lines[0], blocks[n:])
		}
	}
	return f
}

// unhookDormant takes the hooks from the chains of dormant tables, which the kernel does not call (nft(8)). nft does not list the flag in
// JSON.
func (f *file) unhookDormant() {
	for _, t := range f.tables {
		for i := range t.items {
			if !dormant.MatchString(t.items[i].text()) {
				continue
			}
			for j := range t.items {
				for k := range t.items[j].lines {
					l := &t.items[j].lines[k]
					l.Text = hooked.ReplaceAllString(l.Text, "")
				}
			}
			break
		}
	}
}

var (
	dormant = regexp.MustCompile(`^flags\s[^{]*\bdormant\b`)
	hooked  = regexp.MustCompile(`\btype\s+\w+\s+hook\s+[^;}]*;?(?:\s*policy\s+\w+\s*;?)?|^\s*policy\s+\w+\s*;?\s*$`)
)

// place returns the table of a chain that stands alone.
func (b *Block) place(f *file) (family, name string) {
	if b.Table != "" {
		return b.Family, b.Table
	}
	text := (&item{lines: b.Lines}).text()
	name, family = "unnamed", "inet"
	families := map[string]bool{}
	for _, m := range familyWord.FindAllStringSubmatch(text, -1) {
		families[m[1]] = true
		if family = m[1]; len(families) > 1 {
			family = "inet"
		}
	}
	if m := hookLine.FindStringSubmatch(text); m != nil && m[1] == "nat" {
		name = "nat"
	}
	f.Assumed = append(f.Assumed, fmt.Sprintf("line %d: the table of the chain is not shown; assuming %s %s", b.Lines[0].Number, family, name))
	return family, name
}

// takeApart adds the items of a block's lines; frame is the depth of a table's items.
func (f *file) takeApart(t *table, lines []Line, block, frame int) {
	depth := 0
	var open *item
	for _, l := range lines {
		text := strings.TrimSpace(l.Text)
		if depth == 0 && frame == 1 { // "table ip nat { chain x { … } }" may stand in one line
			head := TableLine.FindString(text)
			depth, text = 1, strings.TrimSpace(text[len(head):])
			for strings.HasSuffix(text, "}") && Braces(text) < 0 {
				text = strings.TrimSpace(text[:len(text)-1])
			}
			l.Text = text
		}
		if text == "" {
			continue
		}
		before := depth
		depth += Braces(text)
		switch {
		case open == nil && before == frame && depth >= frame:
			words := strings.Fields(strings.ReplaceAll(text, "{", " { "))
			key := words[0]
			if len(words) > 1 {
				key += " " + words[1]
			}
			open = &item{key: key, block: block}
			fallthrough
		case open != nil:
			open.lines = append(open.lines, l)
			if depth <= frame {
				f.put(t, *open)
				open = nil
			}
		}
	}
	if open != nil { // the end is missing
		if depth-frame == 1 && strings.HasPrefix(open.key, "chain ") {
			open.lines = append(open.lines, Line{0, "..."})
		}
		open.lines = append(open.lines, Line{0, strings.Repeat("}", depth-frame)})
		f.put(t, *open)
	}
}

// run adds a command, which is assumed to have been run. One whose chain is listed below has been run by then.
func (f *file) run(l Line, below []Block) {
	m := CommandLine.FindStringSubmatch(l.Text)
	object, family, name, chain := m[2], cmp.Or(m[3], "ip"), m[4], m[5]
	known := f.find(family, name)
	switch {
	case known != nil && known.listedBelow(object+" "+chain, below), known != nil && object == "rule" && known.listedBelow("chain "+chain, below):
		f.Earlier = append(f.Earlier, l.Number)
		return
	case object == "chain" && known != nil && known.has("chain "+chain) && m[6] == "":
		return
	}
	if known == nil {
		known = f.table(family, name)
	}
	if object == "rule" && !known.has("chain "+chain) {
		hook := iptables.NFTHook(name, chain)
		if hook == "" {
			f.refuse(l, "a rule of a chain that is not shown")
			return
		}
		f.Assumed = append(f.Assumed, fmt.Sprintf("line %d: the text does not show where chain %s %s is called; assuming the place that iptables uses",
			l.Number, name, chain))
		known.items = append(known.items, item{key: "chain " + chain, block: -1, lines: []Line{{l.Number, "chain " + chain + " { " + hook + " }"}}})
	}
	if object == "chain" || object == "set" || object == "map" {
		known.items = append(known.items, item{key: object + " " + chain, block: -1, lines: []Line{{l.Number, object + " " + chain + " " +
			cmp.Or(strings.TrimSpace(m[6]), "{ }")}}})
	} else if object != "table" {
		f.commands = append(f.commands, l)
	}
	f.Commands++
}

func (f *file) find(family, name string) *table {
	if i := slices.IndexFunc(f.tables, func(t *table) bool { return t.family == family && t.name == name }); i >= 0 {
		return f.tables[i]
	}
	return nil
}

func (t *table) has(key string) bool {
	return slices.ContainsFunc(t.items, func(it item) bool { return it.key == key })
}

// listedBelow reports whether an item is shown in one of the blocks.
func (t *table) listedBelow(key string, blocks []Block) bool {
	return slices.ContainsFunc(t.items, func(it item) bool {
		return it.key == key && it.block >= 0 && slices.ContainsFunc(blocks, func(b Block) bool {
			return it.lines[0].Number >= b.Lines[0].Number && it.lines[0].Number <= b.Lines[len(b.Lines)-1].Number
		})
	})
}

func (f *file) refuse(l Line, why string) { f.NotRead = append(f.NotRead, Unread{l.Number, why}) }

// withoutUncalled marks the rules of chains to which nothing leads, unless a command listed their table whole: where they are called is
// unknown. It takes out those of which no table is shown.
func (f *file) withoutUncalled(blocks []Block) {
	called, alone := map[string]bool{}, map[int]bool{}
	for n, b := range blocks {
		alone[n] = !b.Command && ChainLine.MatchString(strings.TrimSpace(b.Lines[0].Text))
		for _, l := range b.Lines {
			for _, m := range calls.FindAllStringSubmatch(l.Text, -1) {
				called[m[1]] = true
			}
		}
	}
	for _, t := range f.tables {
		var kept []item
		asleep := slices.ContainsFunc(t.items, func(it item) bool { return dormant.MatchString(it.text()) })
		for _, it := range t.items {
			chain := strings.TrimPrefix(it.key, "chain ")
			if !alone[it.block] || chain == it.key || called[chain] || hookLine.MatchString(it.text()) {
				kept = append(kept, it)
				if it.block >= 0 && !blocks[it.block].Whole && chain != it.key && !called[chain] && !asleep && !hookLine.MatchString(it.text()) {
					f.refuseRules(it)
				}
				continue
			}
			if hook := iptables.NFTHook(t.name, chain); hook != "" && (t.family == "ip" || t.family == "ip6") {
				f.Assumed = append(f.Assumed, fmt.Sprintf("line %d: the text does not show where chain %s %s is called; assuming the place that iptables uses",
					it.lines[0].Number, t.name, chain))
				it.lines = append([]Line{it.lines[0], {0, hook}}, it.lines[1:]...)
				kept = append(kept, it)
				continue
			}
			f.refuseRules(it)
		}
		t.items = kept
	}
}

// refuseRules marks a chain's rules as not read. An empty chain has no effect, whatever leads to it.
func (f *file) refuseRules(it item) {
	for _, l := range it.lines {
		if text := strings.Trim(ChainLine.ReplaceAllString(strings.TrimSpace(l.Text), ""), "{}; "); text != "" && text[0] != '#' && l.Number > 0 {
			f.refuse(l, "a rule of a chain to which nothing leads that is shown")
		}
	}
}

// lines returns the whole file.
func (f *file) lines() []Line {
	all := append([]Line(nil), f.defines...)
	for _, t := range f.tables {
		all = append(all, Line{0, fmt.Sprintf("table %s %s {", t.family, t.name)})
		for _, it := range t.items {
			all = append(all, it.lines...)
		}
		all = append(all, Line{0, "}"})
	}
	return append(all, f.commands...)
}
