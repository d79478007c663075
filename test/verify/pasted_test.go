package verify

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/writers"
)

var texts = flag.Int("texts", 500, "how many mutated texts")

// paste is a change that people make to what a machine printed, when they copy it.
type paste struct {
	name string
	// change gives the text as it is pasted. lines are those of the whole.
	change func(r *rand.Rand, lines []string) []string
}

// pastes are the changes. None of them leaves a rule out without a trace.
var pastes = []paste{
	{"annotated", func(r *rand.Rand, lines []string) []string {
		i := someRule(r, lines)
		lines[i] += oneOf(r, "   <--- here", "  ← this one", " <== why?", "  # what is this?", " <-- does not match")
		return lines
	}},
	{"quoted", each(func(line string) string { return "> " + line })},
	{"quoted twice", each(func(line string) string { return "> > " + line })},
	{"indented", each(func(line string) string { return "    " + line })},
	{"with tabs", each(func(line string) string { return "\t" + line })},
	{"of Windows", each(func(line string) string { return line + "\r" })},
	{"with blanks behind", each(func(line string) string { return line + "   " })},
	{"in a fence", func(_ *rand.Rand, lines []string) []string {
		return slices.Concat([]string{"```console"}, lines, []string{"```"})
	}},
	{"in back quotes", each(func(line string) string { return "`" + line + "`" })},
	{"numbered", numbered("%d:%s")},
	{"numbered by cat", numbered("%6d\t%s")},
	{"with the time", each(func(line string) string { return "2026-11-02T10:11:12Z " + line })},
	{"with the time of day", each(func(line string) string { return "[10:11:12] " + line })},
	{"in HTML", each(strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace)},
	{"typeset", each(func(line string) string {
		line = strings.ReplaceAll(line, " --", " –")
		for strings.Contains(line, `"`) {
			line = strings.Replace(strings.Replace(line, `"`, "“", 1), `"`, "”", 1)
		}
		return line
	})},
	{"wrapped", func(r *rand.Rand, lines []string) []string { return wrap(lines, 60+r.IntN(60)) }},
	{"a sentence below a rule", func(r *rand.Rand, lines []string) []string {
		return slices.Insert(lines, someRule(r, lines)+1, oneOf(r, "This is the rule that I mean.", "I do not know what this rule does.",
			"Why does it not match?"))
	}},
	{"prose around", func(_ *rand.Rand, lines []string) []string {
		return slices.Concat([]string{"Hello, these are the rules of my node:", ""}, lines, []string{"", "What is wrong with them?"})
	}},
	{"a rule is cut off", func(r *rand.Rand, lines []string) []string {
		i := someRule(r, lines)
		lines[i] = lines[i][:4+r.IntN(max(strings.LastIndex(lines[i], " -j ")-2, 1))]
		return lines
	}},
	{"rules are left out", func(r *rand.Rand, lines []string) []string {
		i := someRule(r, lines)
		return slices.Replace(lines, i, min(i+1+r.IntN(20), len(lines)), oneOf(r, "...", "…", "[...]", "(many more)", "<snip>"))
	}},
	{"the beginning is left out", func(r *rand.Rand, lines []string) []string { return lines[r.IntN(len(lines)):] }},
	{"the end is left out", func(r *rand.Rand, lines []string) []string { return lines[:1+r.IntN(len(lines)-1)] }},
	{"tables in another order", func(r *rand.Rand, lines []string) []string {
		var tables [][]string
		begin := 0
		for i, line := range lines {
			if line == "COMMIT" {
				tables, begin = append(tables, lines[begin:i+1]), i+1
			}
		}
		r.Shuffle(len(tables), func(i, j int) { tables[i], tables[j] = tables[j], tables[i] })
		return append(slices.Concat(tables...), lines[begin:]...)
	}},
	{"rules alone", func(_ *rand.Rand, lines []string) []string {
		return slices.DeleteFunc(lines, func(line string) bool { return !isRule(line) })
	}},
	{"listed by table", listed},
}

func each(f func(string) string) func(*rand.Rand, []string) []string {
	return func(_ *rand.Rand, lines []string) []string {
		for i := range lines {
			lines[i] = f(lines[i])
		}
		return lines
	}
}

func numbered(format string) func(*rand.Rand, []string) []string {
	return func(_ *rand.Rand, lines []string) []string {
		for i := range lines {
			lines[i] = fmt.Sprintf(format, i+1, lines[i])
		}
		return lines
	}
}

func oneOf(r *rand.Rand, of ...string) string { return of[r.IntN(len(of))] }

// someRule is the number of a line that is a rule.
func someRule(r *rand.Rand, lines []string) int {
	var rules []int
	for i, line := range lines {
		if isRule(line) {
			rules = append(rules, i)
		}
	}
	return rules[r.IntN(len(rules))]
}

// wrap breaks lines as a terminal of so many columns does.
func wrap(lines []string, columns int) []string {
	var out []string
	for _, line := range lines {
		for len(line) > columns {
			out, line = append(out, line[:columns]), line[columns:]
		}
		out = append(out, line)
	}
	return out
}

// listed is what "iptables -S" prints of each table, between prompts.
func listed(_ *rand.Rand, lines []string) []string {
	var out []string
	for _, line := range lines {
		switch fields := strings.Fields(line); {
		case line == "", line[0] == '#', line == "COMMIT":
		case line[0] == '*':
			out = append(out, "root@n:~# iptables -t "+line[1:]+" -S")
		case line[0] == ':' && fields[1] == "-":
			out = append(out, "-N "+fields[0][1:])
		case line[0] == ':':
			out = append(out, "-P "+fields[0][1:]+" "+fields[1])
		default:
			out = append(out, line)
		}
	}
	return append(out, "root@n:~#")
}

// wholes are the dumps that texts are made of: those that our writers make in their tests, and those of others' programs.
func wholes(t *testing.T) []string {
	t.Helper()
	var all []string
	paths, _ := filepath.Glob("../../internal/node/proxy/iptables/testdata/*.txtar")
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files {
			if text := string(f.Data); strings.HasPrefix(text, "*") && strings.Count(text, "COMMIT\n") > 1 && !strings.Contains(path, "ipv6") {
				all = append(all, declared(text))
			}
		}
	}
	for _, name := range []string{"docker-27", "docker-28", "felix-3.31"} {
		text, err := os.ReadFile("../../internal/answer/explain/foreign/testdata/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, declared(string(text)))
	}
	if len(all) < 10 {
		t.Fatalf("%d dumps", len(all))
	}
	return append(all, randomDumps(t)...)
}

// randomDumps are those of hosts of random worlds. Rules without a target, which may be cut off, would make the whole ones unsure.
func randomDumps(t *testing.T) []string {
	t.Helper()
	var all []string
	for world := uint64(1); len(all) < 60; world++ {
		for _, h := range Generate(*seed<<16 + world).Hosts {
			lines := slices.DeleteFunc(*h.lines("iptables"), func(line string) bool {
				return isRule(line) && !strings.Contains(line, " -j ") && !strings.Contains(line, " -g ")
			})
			if slices.Contains(lines, "*nat") && slices.Contains(lines, "*filter") && slices.ContainsFunc(lines, isRule) {
				all = append(all, strings.Join(slices.Concat(emptyTables(lines), lines), "\n")+"\n")
			}
		}
	}
	return all
}

// emptyTables are those of a dump that it does not have.
func emptyTables(lines []string) []string {
	var out []string
	for _, name := range tableNames {
		if slices.Contains(lines, "*"+name) {
			continue
		}
		out = append(out, "*"+name)
		for _, chain := range builtins[name] {
			out = append(out, ":"+chain+" ACCEPT [0:0]")
		}
		out = append(out, "COMMIT")
	}
	return out
}

func isRule(line string) bool { return strings.HasPrefix(line, "-A ") }

// declared are tables with a line for each of their chains, and rules that are inserted (-I) at the head of theirs, as iptables-save prints
// them.
func declared(text string) string {
	var out []string
	for table := range strings.SplitAfterSeq(text, "COMMIT\n") {
		_, table, found := strings.Cut("\n"+table, "\n*")
		if !found {
			continue
		}
		name, rules, _ := strings.Cut(table, "\n")
		out = append(out, "*"+name)
		chains := iptables.BuiltIn(name)
		var inserted []string
		for line := range strings.Lines(rules) {
			if rule, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "-I "); ok {
				inserted = slices.Insert(inserted, 0, "-A "+rule)
				continue
			}
			if fields := strings.Fields(line); fields[0] == "-A" && !slices.Contains(chains, fields[1]) {
				chains = append(chains, fields[1])
			} else if fields[0][0] == ':' && !slices.Contains(chains, fields[0][1:]) {
				chains = append(chains, fields[0][1:])
			}
		}
		for _, c := range chains {
			policy := "-"
			if iptables.IsBuiltIn(c) {
				policy = "ACCEPT"
			}
			out = append(out, ":"+c+" "+policy+" [0:0]")
		}
		out = append(out, inserted...)
		for line := range strings.Lines(rules) {
			if line[0] != ':' && !strings.HasPrefix(line, "-I ") {
				out = append(out, strings.TrimSuffix(line, "\n"))
			}
		}
	}
	return strings.Join(out, "\n") + "\n"
}

// ruleDestination is what rules are for.
var ruleDestination = regexp.MustCompile(`-d ([0-9.]+)/32 .*-p (tcp|udp) .*--dport ([0-9]+)`)

// packets are some to send through a dump: for what its rules are for, and for others.
func packets(r *rand.Rand, whole string) []packet.Packet {
	type end struct {
		protocol packet.Protocol
		to       string
	}
	ends := []end{{packet.TCP, "203.0.113.9:443"}, {packet.UDP, "198.51.100.7:53"}, {packet.TCP, "10.0.0.1:22"}}
	for _, m := range ruleDestination.FindAllStringSubmatch(whole, -1) {
		p, _ := packet.ParseProtocol(m[2])
		ends = append(ends, end{p, m[1] + ":" + m[3]})
	}
	var all []packet.Packet
	for range 3 {
		e := ends[r.IntN(len(ends))]
		to := netip.MustParseAddrPort(e.to)
		from := netip.MustParseAddr(oneOf(r, "10.244.1.5", "10.220.2.28", "203.0.113.77", "10.0.0.99"))
		all = append(all, packet.Packet{Tuple: packet.Tuple{Protocol: e.protocol, Source: from, SourcePort: packet.Exactly(40000),
			Destination: to.Addr(), DestinationPort: packet.Exactly(to.Port())}})
	}
	return all
}

// conclusion is what a walk through a text says, and what it says of what it does not know.
type conclusion struct {
	ends     map[string]bool // of the outcomes
	outcomes []outcome
	read     []string // what reading assumed
}

// outcome is how a packet ends, and on what that depends.
type outcome struct {
	end     string
	unshown map[string]bool // what it met that is not shown whole
	asked   map[string]bool // what is unknown
}

func conclude(book *attribution.Book, text string, p packet.Packet) (conclusion, error) {
	src, err := excerpt.Read(book, nil, "n", []byte(text))
	if err != nil {
		return conclusion{}, err
	}
	r, err := walk.Walk(src, walk.Request{Host: "node/n", Forwarded: true, OneWay: true, Packet: p})
	if err != nil {
		return conclusion{}, err
	}
	host, err := src.Host("node/n")
	if err != nil {
		return conclusion{}, err
	}
	c := conclusion{ends: map[string]bool{}, read: host.Assumed}
	for _, o := range r.Outcomes {
		one := outcome{unshown: map[string]bool{}, asked: map[string]bool{}}
		one.end = fmt.Sprintf("%s %s>%s", o.End.Kind, o.End.Packet.SourceEnd(), o.End.Packet.DestinationEnd())
		for _, u := range o.Unshown {
			what := string(u.Part)
			if u.Chain != nil {
				what = u.Chain.Table.Name + " " + u.Chain.Name
			}
			one.unshown[what] = true
		}
		for _, line := range o.Unread {
			one.unshown[fmt.Sprintf("line %d", line)] = true
		}
		for _, q := range o.Choices {
			if q.Kind == netfilter.Unknown {
				one.asked[q.What] = true
			}
		}
		c.ends[one.end], c.outcomes = true, append(c.outcomes, one)
	}
	return c, nil
}

// contradicts reports whether a conclusion says another thing than that of the whole text, and does not say that it knows less: one of its
// outcomes is another, or it lacks one, and none says so.
func (c conclusion) contradicts(whole conclusion) bool {
	known := outcome{unshown: map[string]bool{}, asked: map[string]bool{}}
	for _, o := range whole.outcomes {
		maps.Copy(known.unshown, o.unshown)
		maps.Copy(known.asked, o.asked)
	}
	lessSure := false
	for _, o := range c.outcomes {
		sure := subset(o.unshown, known.unshown) && subset(o.asked, known.asked)
		if sure && !whole.ends[o.end] {
			return true
		}
		lessSure = lessSure || !sure
	}
	return !lessSure && !same(c.ends, whole.ends)
}

func subset(a, of map[string]bool) bool {
	for k := range a {
		if !of[k] {
			return false
		}
	}
	return true
}

func same(a, b map[string]bool) bool { return len(a) == len(b) && subset(a, b) }

// reader concludes from a text.
type reader func(text string, p packet.Packet) (conclusion, error)

// account is what became of the walks through texts of one kind.
type account struct{ same, lessSure, unread int }

// comparePasted compares what is concluded from so many mutated texts with what the whole ones say, until a conclusion contradicts.
func comparePasted(t *testing.T, n int, whole, mutated reader) (accounts []account, contradiction string) {
	t.Helper()
	r := rand.New(rand.NewPCG(*seed, 0))
	dumps, wants := wholes(t), map[string]conclusion{}
	accounts = make([]account, len(pastes))
	for i := range n {
		of, which := r.IntN(len(dumps)), i%len(pastes)
		lines := strings.Split(strings.TrimSuffix(dumps[of], "\n"), "\n")
		if r.IntN(3) == 0 && pastes[which].name != "the end is left out" { // of which a listing has no trace
			lines = listed(r, lines)
		}
		text := strings.Join(pastes[which].change(r, lines), "\n") + "\n"
		for _, p := range packets(r, dumps[of]) {
			key := fmt.Sprint(of, p.Tuple)
			want, known := wants[key]
			if !known {
				var err error
				if want, err = whole(dumps[of], p); err != nil {
					t.Fatal(err)
				}
				wants[key] = want
			}
			got, err := mutated(text, p)
			switch {
			case err != nil:
				accounts[which].unread++
			case got.contradicts(want):
				return accounts, fmt.Sprintf("%s: %v\n got %v\nwant %v\nassumed %s\n%s", pastes[which].name, p.Tuple, got.ends, want.ends,
					strings.Join(got.read, "\n        "), text)
			case same(got.ends, want.ends):
				accounts[which].same++
			default:
				accounts[which].lessSure++
			}
		}
	}
	return accounts, ""
}

// TestPasted: what is concluded from a text that people changed as they pasted it may be less certain than what the whole text says, never
// different.
func TestPasted(t *testing.T) {
	book := writers.Book(&snapshot.Objects{})
	read := func(text string, p packet.Packet) (conclusion, error) { return conclude(book, text, p) }
	accounts, contradiction := comparePasted(t, *texts, read, read)
	if contradiction != "" {
		t.Error(contradiction)
	}
	for i, a := range accounts {
		t.Logf("%-26s %5d the same, %5d less sure, %5d not read", pastes[i].name, a.same, a.lessSure, a.unread)
	}
}

// TestPastedFindsFaults plants faults in the reading of texts: each must be found.
func TestPastedFindsFaults(t *testing.T) {
	book := writers.Book(&snapshot.Objects{})
	read := func(text string, p packet.Packet) (conclusion, error) { return conclude(book, text, p) }
	for name, faulty := range map[string]reader{
		"lines are lost": func(text string, p packet.Packet) (conclusion, error) {
			lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return strings.Contains(line, " -j DNAT ") })
			return conclude(book, strings.Join(lines, "\n"), p)
		},
		"what is not shown is taken not to be there": func(text string, p packet.Packet) (conclusion, error) {
			c, err := conclude(book, text, p)
			for i := range c.outcomes {
				c.outcomes[i].unshown = nil
			}
			return c, err
		},
		"what is unknown is assumed so": func(text string, p packet.Packet) (conclusion, error) {
			c, err := conclude(book, text, p)
			for i := range c.outcomes {
				c.outcomes[i].asked = nil
			}
			return c, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, contradiction := comparePasted(t, 2000, read, faulty); contradiction == "" {
				t.Error("the fault was not found")
			}
		})
	}
}
