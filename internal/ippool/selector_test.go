package ippool

import (
	"net/netip"
	"strings"
	"testing"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestSelector(t *testing.T) {
	labels := map[string]string{"zone": "west-1", "kubernetes.io/os": "linux", "empty": ""}
	for _, c := range []struct {
		text, canonical string
		want            bool
	}{
		{"", "all()", true},
		{" all( ) ", "all()", true},
		{"global()", "global()", true},
		{"!all()", "!all()", false},
		{"!!all()", "all()", true},
		{"! ! !all()", "!all()", false},
		{"has( zone )", "has(zone)", true},
		{"has(empty)", "has(empty)", true},
		{"has(none)", "has(none)", false},
		{"kubernetes.io/os=='linux'", `kubernetes.io/os == "linux"`, true},
		{`zone != "west-1"`, `zone != "west-1"`, false},
		{"none != 'x'", `none != "x"`, true},
		{"none == ''", `none == ""`, false},
		{"empty == ''", `empty == ""`, true},
		{"zone in {'west-1', 'east', 'east',}", `zone in {"east", "west-1"}`, true},
		{"zone not in {}", "zone not in {}", true},
		{"zone notin {'west-1'}", `zone not in {"west-1"}`, false},
		{"none in {'a'}", `none in {"a"}`, false},
		{"none not in {'a'}", `none not in {"a"}`, true},
		{"zone contains 'st-'", `zone contains "st-"`, true},
		{"zone starts with 'we'", `zone starts with "we"`, true},
		{"zone startswith 'x'", `zone starts with "x"`, false},
		{"zone ends  with '-1'", `zone ends with "-1"`, true},
		{"none contains ''", `none contains ""`, false},
		{`zone == '"'`, `zone == '"'`, false},
		{"has(a) && has(b) || all()", "((has(a) && has(b)) || all())", true},
		{"has(zone) && (has(none) || has(empty))", "(has(zone) && (has(none) || has(empty)))", true},
		{"!(has(zone) && has(empty))", "!(has(zone) && has(empty))", false},
		{"!has(none) && !zone == 'x'", `(!has(none) && !zone == "x")`, true},
		{"has == 'x'", `has == "x"`, false},
		{"in in {'in'}", `in in {"in"}`, false},
	} {
		s, err := ParseSelector(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if got := s.String(); got != c.canonical {
			t.Errorf("%s: is %s, want %s", c.text, got, c.canonical)
		}
		if got := s.Matches(labels); got != c.want {
			t.Errorf("%s: %v, want %v", c.text, got, c.want)
		}
	}
	if !(Selector{}).Matches(nil) || (Selector{}).String() != "all()" {
		t.Error("the zero Selector is not all()")
	}
}

func TestBadSelector(t *testing.T) {
	for text, want := range map[string]string{
		"zone":                          "expected ==, !=, in",
		"zone = 'x'":                    `at "= 'x'": expected ==`,
		"zone == x":                     `at "x": expected a string in quotes`,
		"zone == 'x":                    "does not end",
		"zone in 'x'":                   "expected a set",
		"zone in {'x' 'y'}":             `at "'y'}": expected , or }`,
		"has zone":                      "expected ==",
		"has()":                         "expected a label's name",
		"has(zone":                      "expected )",
		"(all()":                        "expected )",
		"all())":                        `at ")": expected && or ||`,
		"all() &&":                      "expected a label's name",
		"all() & all()":                 "expected && or ||",
		"!":                             "expected a label's name",
		"any()":                         `at "()": expected ==`,
		"a == 'x'\n&& all()":            "expected && or ||",
		strings.Repeat("(", 200000):     "more than 100 parentheses",
		strings.Repeat("a", 513):        "at most 512",
		"has(" + strings.Repeat("a", 9): "expected )",
	} {
		if s, err := ParseSelector(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, %v; want %q", text, s, err, want)
		}
	}
}

// FuzzSelector: no panic, and what is printed reads as the same selector.
func FuzzSelector(f *testing.F) {
	for _, s := range []string{"", "all()", "!has(a) && (b == 'c' || d not in {'e', \"f\"})", "a starts with 'b'", "global() || a contains '\"'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSelector(text)
		if err != nil {
			return
		}
		s.Matches(map[string]string{"a": "b"})
		again, err := ParseSelector(s.String())
		if err != nil {
			if strings.Count(s.String(), "(") > maxDepth {
				return // each && and || within another is in parentheses when printed
			}
			t.Fatalf("%q prints as %q: %v", text, s, err)
		}
		if again.String() != s.String() {
			t.Fatalf("%q prints as %q, which prints as %q", text, s, again)
		}
	})
}

// FuzzPool: no panic, and a range that comes out is masked.
func FuzzPool(f *testing.F) {
	f.Add([]byte(`{"cidr":"10.0.0.0/8","natOutgoing":true,"nodeSelector":"all()","blockSize":26}`))
	f.Add([]byte(`{"cidr":"fd00::/8","ipipMode":"Always","allowedUses":["Workload"],"x":null}`))
	f.Fuzz(func(t *testing.T, spec []byte) {
		p, _ := ParsePool("p", spec)
		if p.CIDR.IsValid() && (p.CIDR != p.CIDR.Masked() || p.CIDR.Bits() == 0) {
			t.Fatalf("%q: %s", spec, p.CIDR)
		}
		_, _ = ParseFelix("n", []Configuration{{"default", spec}})
	})
}
