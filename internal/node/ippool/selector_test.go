package ippool

import (
	"net/netip"
	"strings"
	"testing"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestSelector(t *testing.T) {
	for _, text := range []string{
		"",
		" all( ) ",
		"global()",
		"!all()",
		"!!all()",
		"! ! !all()",
		"has( zone )",
		"kubernetes.io/os=='linux'",
		`zone != "west-1"`,
		"empty == ''",
		"zone in {'west-1', 'east', 'east',}",
		"zone not in {}",
		"zone notin {'west-1'}",
		"zone contains 'st-'",
		"zone starts with 'we'",
		"zone startswith 'x'",
		"zone ends  with '-1'",
		`zone == '"'`,
		"has(a) && has(b) || all()",
		"has(zone) && (has(none) || has(empty))",
		"!(has(zone) && has(empty))",
		"!has(none) && !zone == 'x'",
		"has == 'x'",
		"in in {'in'}",
	} {
		if err := checkSelector(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
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
		if err := checkSelector(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v; want %q", text, err, want)
		}
	}
}

// FuzzSelector: no panic, and a selector in parentheses is one where the selector is.
func FuzzSelector(f *testing.F) {
	for _, s := range []string{"", "all()", "!has(a) && (b == 'c' || d not in {'e', \"f\"})", "a starts with 'b'",
		"global() || a contains '\"'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Trim(text, " \t") == "" || strings.Count(text, "(") >= maxDepth {
			return // everything, which has no parentheses; too deep with one pair more
		}
		bare, wrapped := checkSelector(text), checkSelector("("+text+")")
		if bare == nil && wrapped != nil {
			t.Fatalf("%q is a selector, and in parentheses it is not: %v", text, wrapped)
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
