package termsafe

import (
	"strings"
	"testing"
)

// TestWrap: lines are broken between words alone, and the words of a line stay as they are.
func TestWrap(t *testing.T) {
	for _, tt := range []struct {
		text  string
		width int
		want  string
	}{
		{"", 5, ""}, {"a bc", 0, "a bc"}, {"a bc", 4, "a bc"}, {"a bc", 3, "a|bc"}, {"abcdef g hi", 4, "abcdef|g hi"},
		{"ä ö  ü", 3, "ä ö| ü"}, {"a ", 5, "a "}, {" a", 1, "|a"},
	} {
		if got := strings.Join(Wrap(tt.text, tt.width), "|"); got != tt.want {
			t.Errorf("%q in %d columns: %q, want %q", tt.text, tt.width, got, tt.want)
		}
	}
	words := strings.Repeat("a b ", 1<<20) // long lines take no longer than short ones
	if got := strings.Join(Wrap(words, 80), " "); got != words {
		t.Error("a long text has other words")
	}
	if got := Wrap(words, 0); len(got) != 1 {
		t.Errorf("a long text in one line: %d", len(got))
	}
}
