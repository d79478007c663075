package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// TestHelpWidth holds the help of all commands to the width of terminals: texts and flags to 80 columns, lines that users copy and the list of
// commands to 100.
func TestHelpWidth(t *testing.T) {
	for _, root := range []*cobra.Command{rootCommand(Streams{}), pluginCommand(Streams{})} {
		visitCommands(root, func(c *cobra.Command) {
			t.Run(strings.ReplaceAll(c.CommandPath(), " ", "_"), func(t *testing.T) {
				var help strings.Builder
				c.SetOut(&help)
				if err := c.Help(); err != nil {
					t.Fatal(err)
				}
				limit, section := helpWidth, ""
				for line := range strings.Lines(help.String()) {
					line = strings.TrimSuffix(line, "\n")
					if strings.HasPrefix(line, "Use ") { // cobra's last line
						limit = 100
					}
					if strings.HasSuffix(line, ":") && !strings.HasPrefix(line, " ") {
						limit, section = 100, line
						if strings.HasSuffix(line, "lags:") {
							limit = helpWidth
						}
					}
					if n := utf8.RuneCountInString(line); n > limit {
						t.Errorf("%s %d columns, more than %d: %s", section, n, limit, line)
					}
				}
			})
		})
	}
}

func visitCommands(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, below := range c.Commands() {
		visitCommands(below, visit)
	}
}

// TestWrapParagraphs joins the lines of a paragraph and breaks it anew; indented lines stay apart.
func TestWrapParagraphs(t *testing.T) {
	words := strings.TrimSpace(strings.Repeat("word ", 20))
	for _, tt := range []struct{ name, text, want string }{
		{"short", "a\nb\n\nc", "a b\n\nc"},
		{"long", words, strings.TrimSpace(words[:79]) + "\n" + words[80:]},
		{"list", "two:\n  a\n  b", "two:\n  a\n  b"},
		{"long line of a list", "  " + words, "  " + strings.TrimSpace(words[:75]) + "\n    " + words[75:]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := wrapParagraphs(tt.text); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}
