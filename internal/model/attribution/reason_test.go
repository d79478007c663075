package attribution

import (
	"net/netip"
	"testing"
)

// book has a writer whose chains are named by ports, and one who comes second.
func book() *Book {
	return &Book{
		Writers: []Writer{
			{Name: "first", File: "first.go", Words: map[string]string{"port": "[a-z/]+"}, Comments: []string{"for {port} *"}, Chains: []Chain{
				{Table: "nat", Name: "SVC-{port}", Role: Balances, Rules: []Line{
					{To: "SEP-{port}", For: "{port}: its own endpoint"},
					{To: "SEP-{other}", For: "{port}: endpoint {endpoint}[, {owner}|, of nobody]"},
					{To: "RETURN", Text: "-d {cidr}", For: "not {cidr}", Not: "it is no {cidr}"},
				}},
				{Table: "nat", Name: "DISPATCH", Rules: []Line{{For: "{port}: found"}}},
			}, Know: func(r *Rule, f Fields) {
				if r.Source.IsValid() {
					f.Set("endpoint", r.Source.String())
				}
			}},
			{Name: "second", Chains: []Chain{{Family: Bridge, Name: "SVC-{x}", Rules: []Line{{For: "a frame"}}}, {Name: "DISPATCH",
				Rules: []Line{{Text: "*", For: "anything"}}}}},
		},
		Name: func(end string) string {
			if end == "10.0.0.1" {
				return "pod a"
			}
			return ""
		},
	}
}

func TestSign(t *testing.T) {
	one := netip.MustParseAddr("10.0.0.1")
	for _, test := range []struct {
		name         string
		rule         Rule
		writer, want string
	}{
		{"one word stands for one thing", Rule{Table: "nat", Chain: "SVC-a", To: "SEP-a"}, "first", "a: its own endpoint"},
		{"another thing, and what is not known", Rule{Table: "nat", Chain: "SVC-a", To: "SEP-b"}, "", ""},
		{"what the writer knows", Rule{Table: "nat", Chain: "SVC-a", To: "SEP-b", Source: one}, "first", "a: endpoint 10.0.0.1, pod a"},
		{"what the rules around say", Rule{Table: "nat", Chain: "SVC-a", Text: "-m x -j SEP-b", Known: Fields{"endpoint": "10.0.0.2",
			"port": "z"}}, "first",
			"a: endpoint 10.0.0.2, of nobody"},
		{"it applied", Rule{Table: "nat", Chain: "SVC-a", Text: "-d 10.0.0.0/8 -j RETURN"}, "first", "not 10.0.0.0/8"},
		{"it did not", Rule{Table: "nat", Chain: "SVC-a", Text: "-d 10.0.0.0/8 -j RETURN", Passed: true}, "first", "it is no 10.0.0.0/8"},
		{"no part of a word", Rule{Table: "nat", Chain: "SVC-a", Text: "--not-d 10.0.0.0/8 -j RETURN"}, "", ""},
		{"a field of the comment", Rule{Table: "nat", Chain: "DISPATCH", Text: "-j X", Comment: "for ns/a alone"}, "first", "ns/a: found"},
		{"the next writer, where the first does not know", Rule{Table: "nat", Chain: "DISPATCH", Text: "-j X"}, "second", "anything"},
		{"another table", Rule{Table: "filter", Chain: "SVC-a", To: "SEP-a"}, "", ""},
		{"frames", Rule{Family: Bridge, Table: "nat", Chain: "SVC-a"}, "second", "a frame"},
	} {
		got, ok := book().Sign(&test.rule)
		if got.For != test.want || got.Writer != test.writer || ok != (test.want != "") {
			t.Errorf("%s: %q by %q, want %q by %q", test.name, got.For, got.Writer, test.want, test.writer)
		}
	}
}

func TestTarget(t *testing.T) {
	for text, want := range map[string]string{
		`-m comment --comment "say -j X" -j KUBE-SEP-A`: "KUBE-SEP-A",
		`-p tcp -g OTHER`: "OTHER",
		`ip saddr 10.0.0.1 counter drop comment "jump up"`: "drop",
		`iifname . ip saddr @own notrack accept`:           "accept",
		`numgen random mod 1 vmap { 0 : goto a }`:          "",
		`meta mark set 1`: "",
	} {
		if got := target(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestFillKeepsBraces: what is put into a text is no part of its pattern.
func TestFillKeepsBraces(t *testing.T) {
	f := Fields{"a": "{b} [x|y]", "b": "no"}
	for text, want := range map[string]string{"{a}": "{b} [x|y]", "[{c}|{a}]": "{b} [x|y]", "[, {c}]end": "end", "a [0] b": "a [0] b"} {
		if got, all := f.Fill(text); got != want || !all {
			t.Errorf("%s: %q %v, want %q", text, got, all, want)
		}
	}
	if _, all := f.Fill("{c}"); all {
		t.Error("a field that is not known is said to be")
	}
}

func TestChain(t *testing.T) {
	b := book()
	for _, test := range []struct {
		family      Family
		table, name string
		want        string
	}{
		{IP, "nat", "SVC-a", "SVC-{port}"}, {IP, "", "SVC-a", "SVC-{port}"}, {IP, "filter", "SVC-a", ""}, {Bridge, "nat", "SVC-a", "SVC-{x}"},
		{IP, "nat", "SVC-a-", ""},
	} {
		got := ""
		if c := b.Chain(test.family, test.table, test.name); c != nil {
			got = c.Name
		}
		if got != test.want {
			t.Errorf("%s %s: %q, want %q", test.table, test.name, got, test.want)
		}
	}
}
