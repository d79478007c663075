package termsafe

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"web-1 → 10.0.0.1, ü": "web-1 → 10.0.0.1, ü",
		"a\x1b]0;title\x07b":  `a\u001b]0;title\u0007b`,
		"a\r\nb\tc\x00\x7f":   `a\u000d\u000ab\u0009c\u0000\u007f`,
		"\u202etxt.exe\u2066": `\u202etxt.exe\u2066`,
		"\u009b31m\u2028":     `\u009b31m\u2028`,
		"a\x9b31m\xff":        `a\x9b31m\xff`,
		"\x1b[31mred":         `\u001b[31mred`,
		"a\u200db":            "a\u200db",
		"\U000e0041":          `\udb40\udc41`,
		"\ufffd":              "\ufffd",
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestLine(t *testing.T) {
	if got := Line("failed to pull:\n\tno such host\r\n \x1b[31m"); got != `failed to pull: no such host \u001b[31m` {
		t.Error(got)
	}
}

func TestWriter(t *testing.T) {
	for in, want := range map[string]string{
		"a\tb\nc\r\nd\re":                        "a\tb\nc\nd\\u000de",
		"\x1b[31mproblem:\x1b[0m \x1b[2J\x1b[8m": "\x1b[31mproblem:\x1b[0m \\u001b[2J\\u001b[8m",
		"ü→\u202e":                               `ü→\u202e`,
		"\x1b[1;31m":                             `\u001b[1;31m`,
	} {
		var whole, parts strings.Builder
		if _, err := Writer(&whole).Write([]byte(in)); err != nil || whole.String() != want {
			t.Errorf("%q: %q, %v; want %q", in, whole.String(), err, want)
		}
		w := Writer(&parts)
		for _, r := range strings.SplitAfter(in, "ü") { // and a character in two halves
			for _, b := range []string{r[:len(r)-min(1, len(r))], r[len(r)-min(1, len(r)):]} {
				if _, err := w.Write([]byte(b)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if strings.HasPrefix(in, "ü") && parts.String() != want {
			t.Errorf("%q in parts: %q, want %q", in, parts.String(), want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b\u202e\x80")
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, hidden) || Text(got) != got {
			t.Errorf("%q: %q", s, got)
		}
	})
}

// TestJSON: JSON that is shown is JSON with the same texts in it.
func TestJSON(t *testing.T) {
	want := "\x1b[2J\x7f\u009b31m\u202e\u2028\U000e0041\\u202e\t\r\n\"ü"
	var b strings.Builder
	if err := json.NewEncoder(Writer(&b)).Encode(want); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil || got != want {
		t.Errorf("%s: %q, %v; want %q", b.String(), got, err, want)
	}
	if strings.ContainsFunc(strings.TrimSuffix(b.String(), "\n"), hidden) {
		t.Errorf("%q", b.String())
	}
}
