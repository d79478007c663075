package iptables

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/model/netfilter"
)

// withoutNotes drops the lines that iptables-save dates.
func withoutNotes(dump []byte) string {
	var b strings.Builder
	for line := range strings.Lines(string(dump)) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestDumpsPrintAsRead(t *testing.T) {
	dump, err := os.ReadFile("testdata/syntax.save")
	if err != nil {
		t.Fatal(err)
	}
	tables, err := Parse(dump)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(withoutNotes(dump), string(AppendSave(nil, tables))); diff != "" {
		t.Error(diff)
	}
	var unknown []string
	for _, table := range tables {
		for _, chain := range table.Chains {
			for _, rule := range chain.Rules {
				if rule.Unknown != "" {
					unknown = append(unknown, rule.Unknown)
				}
			}
		}
	}
	want := []string{`-i cni+ -m newmodule --strange "a b" -j ACCEPT`, "-d 10.0.0.1/255.255.0.255 -j ACCEPT"}
	if diff := cmp.Diff(want, unknown); diff != "" {
		t.Errorf("rules taken as unknown: %s", diff)
	}
}

func TestParsedFields(t *testing.T) {
	got, ok := ParseSpec(`! -s 10.1.2.3/16 -d 10.0.0.1 ! -o eth+ -p tcp -m comment --comment "a \"b\"" -m tcp ! --dport 80 -g NEXT`)
	if !ok {
		t.Fatal("not known")
	}
	want := Rule{
		Source:      AddressMatch{Not: true, Prefix: netip.MustParsePrefix("10.1.0.0/16")},
		Destination: Host(netip.MustParseAddr("10.0.0.1")),
		Out:         NameMatch{Not: true, Name: "eth+"},
		Protocol:    NameMatch{Name: "tcp"},
		Matches:     []Match{CommentMatch(`a "b"`), {Module: "tcp", Options: []Option{NotOpt("dport", "80")}}},
		Target:      Target{Name: "NEXT", Goto: true},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if got.Comment() != `a "b"` {
		t.Errorf("comment %q", got.Comment())
	}
}

func TestShorthandIsCompleted(t *testing.T) {
	for in, want := range map[string]string{
		"-p tcp --dport 80 -j ACCEPT":                        "-p tcp -m tcp --dport 80 -j ACCEPT",
		"-j ACCEPT -s 1.2.3.4":                               "-s 1.2.3.4/32 -j ACCEPT",
		"-s 0.0.0.0/0 -j ACCEPT":                             "-j ACCEPT",
		"-m comment --comment plain -j RETURN":               "-m comment --comment plain -j RETURN",
		"-m comment --comment 'two words' -j RETURN":         `-m comment --comment "two words" -j RETURN`,
		"-p tcp -m mark --mark 0x1 --sport 5 -j DROP":        "-p tcp -m mark --mark 0x1 -m tcp --sport 5 -j DROP",
		"-m comment --comment -x -j LOG --log-prefix \"-y\"": "-m comment --comment -x -j LOG --log-prefix -y",
	} {
		rule, ok := ParseSpec(in)
		if !ok || rule.Spec() != want {
			t.Errorf("%s: got %s (known: %v), want %s", in, rule.Spec(), ok, want)
		}
	}
}

// TestComments: comments with quotes and backslashes, as iptables-save 1.8.9 prints them, are read and printed again. So are those of rules
// with an unknown match.
func TestComments(t *testing.T) {
	for quoted, comment := range map[string]string{
		`"name: \"bridge\" id: \"8d06f4\""`: `name: "bridge" id: "8d06f4"`, // as CNI's plugin bridge writes it
		`"bridge\" id: \"8d06"`:             `bridge" id: "8d06`,
		`"it\'s a back\\slash \\"`:          `it's a back\slash \`,
		"\"a\ttab\"":                        "a\ttab",
		"\"two\nlines \\\"\n-A X\"":         "two\nlines \"\n-A X",
		`""`:                                "",
		`plain`:                             "plain",
	} {
		for _, rest := range []string{"", " -m newmodule --strange 1"} {
			spec := "-s 10.88.0.5/32 -m comment --comment " + quoted + rest + " -j MASQUERADE"
			dump := "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING " + spec + "\n-A POSTROUTING -j RETURN\nCOMMIT\n"
			tables, err := Parse([]byte(dump))
			if err != nil {
				t.Errorf("%q: %v", dump, err)
				continue
			}
			if got := string(AppendSave(nil, tables)); got != dump {
				t.Errorf("%q is printed %q", dump, got)
			}
			lowered, err := Lower(tables, netfilter.IPv4, netfilter.IPTablesNFT)
			if err != nil {
				t.Fatal(err)
			}
			if rule := lowered[0].Chains[0].Rules[0]; rule.Comment != comment || rule.Text != spec {
				t.Errorf("%s: comment %q, want %q; text %q", quoted, rule.Comment, comment, rule.Text)
			}
		}
	}
}

// TestOpenQuotes: a quote that is not closed takes no other lines with it.
func TestOpenQuotes(t *testing.T) {
	dump := "*nat\n:X - [0:0]\n-A X -m comment --comment \"cut…\n-A X -j RETURN\nCOMMIT\n" + strings.Repeat("# note\n", 500) + "# \"\n"
	tables, err := Parse([]byte(dump))
	if err != nil {
		t.Fatal(err)
	}
	if rules := tables[0].Chains[0].Rules; len(rules) != 2 || rules[0].Unknown != `-m comment --comment "cut…` {
		t.Errorf("rules %+v", rules)
	}
}

// FuzzComment: any text is printed as a comment that reads as it was.
func FuzzComment(f *testing.F) {
	for _, s := range []string{`name: "bridge" id: "8d06f4"`, `\`, `"`, `'`, "", "!", "a\nb", "-j", "\\\"", "\r", "ü"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 256 { // XT_MAX_COMMENT_LEN
			return
		}
		rules := []Rule{{Matches: []Match{CommentMatch(text)}, Target: Jump("DROP")}, {}}
		tables := []Table{{Name: "t", Chains: []Chain{{Name: "A", Rules: rules}}}}
		dump := AppendSave(nil, tables)
		read, err := Parse(dump)
		if err != nil || len(read) != 1 || len(read[0].Chains) != 1 || len(read[0].Chains[0].Rules) != 2 {
			t.Fatalf("%q is read as %+v, %v", dump, read, err)
		}
		if got := read[0].Chains[0].Rules[0].Comment(); got != text {
			t.Errorf("%q is printed %q and read as %q", text, dump, got)
		}
	})
}

func TestParseErrorsNameTheLine(t *testing.T) {
	for dump, line := range map[string]int{
		"-A INPUT -j DROP":                            1,
		"*nat\n:X - [0:0]\n-A Y -j DROP\nCOMMIT\n":    3,
		"*nat\n*filter\n":                             2,
		"*nat\n:X -\n:X -\n":                          3,
		"*nat\n:X - [1]\n":                            2,
		"*nat\n:X\n":                                  2,
		"# note\n*nat\n:X - [0:0]\n[a:b] -A X -j Y\n": 4,
		"*nat\n:X - [0:0]\n-I X -j Y\n":               3,
	} {
		_, err := Parse([]byte(dump))
		var parse *ParseError
		if !errors.As(err, &parse) || parse.Line != line {
			t.Errorf("%q: got %v, want an error at line %d", dump, err, line)
		}
	}
}

func TestProbabilityIsTheKernelsOwn(t *testing.T) {
	// The values that iptables-save 1.8.9 prints for --probability %0.10f of 1/n.
	for n, want := range map[int]string{2: "0.50000000000", 3: "0.33333333349", 4: "0.25000000000", 6: "0.16666666651", 7: "0.14285714272"} {
		if got := RoundedProbability(n, 10); got != want {
			t.Errorf("1/%d: got %s, want %s", n, got, want)
		}
	}
	if got, want := RoundedProbability(3, 5), "0.33332999982"; got != want { // that of --probability 0.33333
		t.Errorf("1/3 with five places: got %s, want %s", got, want)
	}
}

func TestRestoreInput(t *testing.T) {
	edits := []Edit{
		{Table: Filter},
		{
			Table:   NAT,
			Replace: []Chain{{Name: "A", Rules: []Rule{{Target: Jump("B")}}}},
			Remove:  []SharedRule{{"OUTPUT", Rule{Target: Jump("OLD")}}},
			Insert:  []SharedRule{{"OUTPUT", Rule{Matches: []Match{CommentMatch("to us")}, Target: Jump("A")}}},
			Append:  []SharedRule{{"POSTROUTING", Rule{Target: Jump("MASQUERADE")}}},
			Delete:  []string{"OLD"},
		},
	}
	want := `*nat
:A - [0:0]
:OLD - [0:0]
-A A -j B
-D OUTPUT -j OLD
-I OUTPUT -m comment --comment "to us" -j A
-A POSTROUTING -j MASQUERADE
-X OLD
COMMIT
`
	if diff := cmp.Diff(want, string(AppendRestore(nil, edits))); diff != "" {
		t.Error(diff)
	}
	if got := edits[1].Rules(); got != 3 {
		t.Errorf("rules written: %d, want 3", got)
	}
}

func FuzzParse(f *testing.F) {
	dump, err := os.ReadFile("testdata/syntax.save")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(dump)
	f.Add([]byte("*t\n:A - [1:2]\n[3:4] -A A -p tcp --dport 80 -j MARK --set-xmark 0x1/0x1 -s 1.2.3.4\nCOMMIT\n"))
	f.Fuzz(func(t *testing.T, dump []byte) {
		tables, err := Parse(dump)
		if err != nil {
			return
		}
		once := AppendSave(nil, tables)
		again, err := Parse(once)
		if err != nil {
			t.Fatalf("cannot read what was printed: %v\n%s", err, once)
		}
		if twice := AppendSave(nil, again); !bytes.Equal(once, twice) {
			t.Fatalf("printed differently:\n%s\n%s", once, twice)
		}
	})
}
