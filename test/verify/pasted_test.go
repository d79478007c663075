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

// paste is a change that people make to what a machine printed, when they copy it. Those of a lower stage come first where several are
// made: 0 changes what is shown, 1 its form, 2 how lines look, and 3 what stands around them.
type paste struct {
	name  string
	stage int
	// change gives the text as it is pasted. lines are those of the whole.
	change func(r *rand.Rand, lines []string) []string
}

// pastes are the changes. None of them leaves a rule out without a trace.
var pastes = []paste{
	{"annotated", 0, func(r *rand.Rand, lines []string) []string {
		i := someRule(r, lines)
		lines[i] += oneOf(r, "   <--- here", "  ← this one", " <== why?", "  # what is this?", " <-- does not match")
		return lines
	}},
	{"quoted", 3, each(func(line string) string { return "> " + line })},
	{"quoted twice", 3, each(func(line string) string { return "> > " + line })},
	{"indented", 3, each(func(line string) string { return "    " + line })},
	{"with tabs", 3, each(func(line string) string { return "\t" + line })},
	{"of Windows", 3, each(func(line string) string { return line + "\r" })},
	{"with blanks behind", 2, each(func(line string) string { return line + "   " })},
	{"in a fence", 3, func(_ *rand.Rand, lines []string) []string {
		return slices.Concat([]string{"```console"}, lines, []string{"```"})
	}},
	{"in back quotes", 3, each(func(line string) string { return "`" + line + "`" })},
	{"numbered", 3, numbered("%d:%s")},
	{"numbered by cat", 3, numbered("%6d\t%s")},
	{"with the time", 3, each(func(line string) string { return "2026-11-02T10:11:12Z " + line })},
	{"with the time of day", 3, each(func(line string) string { return "[10:11:12] " + line })},
	{"in HTML", 2, each(strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;").Replace)},
	{"typeset", 2, each(func(line string) string {
		line = strings.ReplaceAll(line, " --", " –")
		for strings.Contains(line, `"`) {
			line = strings.Replace(strings.Replace(line, `"`, "“", 1), `"`, "”", 1)
		}
		return line
	})},
	{"wrapped", 2, func(r *rand.Rand, lines []string) []string { return wrap(lines, 60+r.IntN(60)) }},
	{"a sentence below a rule", 0, func(r *rand.Rand, lines []string) []string {
		return slices.Insert(lines, someRule(r, lines)+1, oneOf(r, "This is the rule that I mean.", "I do not know what this rule does.",
			"Why does it not match?"))
	}},
	{"prose around", 3, func(_ *rand.Rand, lines []string) []string {
		return slices.Concat([]string{"Hello, these are the rules of my node:", ""}, lines, []string{"", "What is wrong with them?"})
	}},
	{"a rule is cut off", 0, func(r *rand.Rand, lines []string) []string {
		i := someRule(r, lines)
		lines[i] = lines[i][:min(4+r.IntN(max(strings.LastIndex(lines[i], " -j ")-2, 1)), len(lines[i]))]
		return lines
	}},
	{"rules are left out", 0, func(r *rand.Rand, lines []string) []string {
		i := someRule(r, lines)
		return slices.Replace(lines, i, min(i+1+r.IntN(20), len(lines)), oneOf(r, "...", "…", "[...]", "(many more)", "<snip>", "# 12 rules omitted",
			"(500 lines removed for brevity)"))
	}},
	{"the beginning is left out", 1, func(r *rand.Rand, lines []string) []string { return lines[r.IntN(len(lines)):] }},
	{"the end is left out", 1, func(r *rand.Rand, lines []string) []string { return lines[:1+r.IntN(max(len(lines)-1, 1))] }},
	{"tables in another order", 1, func(r *rand.Rand, lines []string) []string {
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
	{"rules alone", 1, func(_ *rand.Rand, lines []string) []string {
		return slices.DeleteFunc(lines, func(line string) bool { return !isRule(line) })
	}},
	{"listed by table", 1, listed},
	{"as commands", 1, asCommands},
	{"a line that is not read", 0, func(r *rand.Rand, lines []string) []string {
		return slices.Insert(lines, r.IntN(len(lines)+1), oneOf(r, "set firewall rule 7 from 10.0.0.0/8 to any DENY", "deny in on eth0 from 10.0.0.0/8",
			"The policy of FORWARD is DROP here.", "2: eth0 -> 10.0.0.1 (allow)"))
	}},
	{"a command commented out", 0, func(r *rand.Rand, lines []string) []string {
		return slices.Insert(lines, r.IntN(len(lines)+1), oneOf(r, "# iptables -P FORWARD DROP", "# iptables -t nat -F", "# systemctl restart firewalld"))
	}},
	{"an unknown match", 0, func(r *rand.Rand, lines []string) []string {
		i := someRule(r, lines)
		if at := strings.LastIndex(lines[i], " -j "); at >= 0 {
			lines[i] = lines[i][:at] + oneOf(r, " -m foo --bar 1", " -m u64 ! --x y") + lines[i][at:]
		}
		return lines
	}},
	{"redacted", 0, func(r *rand.Rand, lines []string) []string {
		i := someRule(r, lines)
		lines[i] = redactedAddress.ReplaceAllString(lines[i], oneOf(r, "x.x.x.x", "<ip>", "a.b.c.xxx", "10.xx.xx.xx"))
		return lines
	}},
	{"coloured", 2, each(func(line string) string {
		return strings.NewReplacer(" -j ", " \x1b[1;31m-j\x1b[0m ", " -d ", " \x1b[32m-d\x1b[m\x1b[K ").Replace(line)
	})},
	{"coloured without escapes", 2, each(func(line string) string { return strings.ReplaceAll(line, " -j ", " [0;31m-j[0m ") })},
	{"with tabs between", 2, each(func(line string) string {
		if !isRule(line) || strings.Contains(line, `"`) {
			return line
		}
		return strings.ReplaceAll(line, " ", "\t")
	})},
	{"with blanks between", 2, each(func(line string) string {
		switch {
		case strings.HasPrefix(line, "*"):
			return "* " + line[1:]
		case isRule(line) && !strings.Contains(line, `"`):
			return strings.ReplaceAll(line, " ", "   ")
		}
		return line
	})},
	{"in a numbered list", 3, numbered("%d. %s")},
	{"with a chevron", 3, each(func(line string) string { return ">> " + line })},
	{"with a pod's name", 3, each(func(line string) string { return "[pod/debug-x7z/main] " + line })},
	{"of a container's log", 3, func(r *rand.Rand, lines []string) []string {
		for i := range lines {
			lines[i] = fmt.Sprintf("2026-11-02T10:11:%02d.%dZ stdout F %s", i%60, r.IntN(1e9), lines[i])
		}
		return lines
	}},
	{"of the journal", 3, numbered("Nov 02 10:11:12 node-1 dump[%d]: %s")},
	{"in a box", 3, each(func(line string) string { return fmt.Sprintf("│ %-60s │", line) })},
	{"in a list of YAML", 3, each(func(line string) string { return "  - \"" + strings.ReplaceAll(line, `"`, `\"`) + "\"" })},
}

// redactedAddress is the place of an address that people hide.
var redactedAddress = regexp.MustCompile(`(?:[0-9]{1,3}\.){3}[0-9]{1,3}`)

// asCommands returns the commands of iptables that make the tables.
func asCommands(r *rand.Rand, lines []string) []string {
	prompt := oneOf(r, "", "$ ", "# ", "sudo ", "root@n:~# ")
	var out []string
	table := ""
	for _, line := range listed(r, lines) {
		if rest, ok := strings.CutPrefix(line, "root@n:~# iptables -t "); ok {
			table = strings.TrimSuffix(rest, " -S")
		} else if strings.HasPrefix(line, "-") {
			out = append(out, prompt+"iptables -t "+table+" "+line)
		}
	}
	return out
}

// clashes reports whether a paste cannot be made with another one: what it needs is gone, or the end is left out of what has no trace of it.
func (p *paste) clashes(other paste) bool {
	forms := []string{"rules alone", "listed by table", "as commands", "tables in another order"}
	return slices.Contains(forms, p.name) && (slices.Contains(forms, other.name) || other.name == "the end is left out" ||
		other.name == "the beginning is left out") || p.name == "wrapped" && (other.stage == 2 || other.name == "as commands")
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

// someRule returns the number of a line that is a rule.
func someRule(r *rand.Rand, lines []string) int {
	var rules []int
	for i, line := range lines {
		if isRule(line) {
			rules = append(rules, i)
		}
	}
	if len(rules) == 0 {
		return r.IntN(len(lines))
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

// listed returns the output of "iptables -S" for each table, between prompts.
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

// wholes returns the dumps that texts are made of: those that our writers make in their tests, and those of others' programs.
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

// randomDumps returns dumps of hosts of random worlds. It leaves out rules without a target: they may be cut off, and would make the whole
// dumps unsure.
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

// emptyTables returns the tables that a dump does not have.
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

// declared adds a line for each chain of a table, and moves rules that are inserted (-I) to the head of theirs, as iptables-save prints
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

// packets returns some packets to send through a dump: those that its rules are for, and others.
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
		if o.End.Kind == walk.Undecided {
			one.asked[o.End.Why] = true
		}
		if packet.IsRedacted(o.End.Packet.Source) || packet.IsRedacted(o.End.Packet.Destination) {
			one.unshown["a redacted address"] = true
		}
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
		isListing := r.IntN(3) == 0 && pastes[which].stage != 1 // of which the end has no trace
		if isListing {
			lines = listed(r, lines)
		}
		made := []paste{pastes[which]}
		for r.IntN(2) == 0 && len(made) < 4 { // a random combination
			other := pastes[r.IntN(len(pastes))]
			if !slices.ContainsFunc(made, func(p paste) bool { return p.name == other.name || p.clashes(other) || other.clashes(p) }) {
				if !isListing || other.stage != 1 {
					made = append(made, other)
				}
			}
		}
		slices.SortStableFunc(made, func(a, b paste) int { return a.stage - b.stage })
		var names []string
		for _, p := range made {
			lines = p.change(r, lines)
			names = append(names, p.name)
		}
		text := strings.Join(lines, "\n") + "\n"
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
				return accounts, fmt.Sprintf("%s: %v\n got %v\nwant %v\nassumed %s\n%s", strings.Join(names, ", "), p.Tuple, got.ends, want.ends,
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
