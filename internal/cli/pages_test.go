package cli

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pageCommands are packetwalk's commands in pages that no tour runs.
var pageCommands = regexp.MustCompile("`((?:sudo )?(?:[./]*bin/)?packetwalk [^`]*)`")

// TestPageCommands: every command of the pages about AKS of today exists and takes these flags, and every tour that they name is there.
func TestPageCommands(t *testing.T) {
	tours, err := filepath.Glob("../../examples/*/README.md")
	if err != nil || len(tours) == 0 {
		t.Fatal(tours, err)
	}
	for _, page := range []string{"then-and-now.md", "questions.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		found := pageCommands.FindAllStringSubmatch(string(text), -1)
		if len(found) < 5 {
			t.Errorf("%s has only %d commands", page, len(found))
		}
		for _, m := range found {
			words := strings.Fields(m[1])
			words = words[slices.IndexFunc(words, func(w string) bool { return strings.HasSuffix(w, "packetwalk") })+1:]
			root := rootCommand(Streams{Out: io.Discard, Err: io.Discard})
			c, args, err := root.Find(words)
			switch {
			case err != nil || c == root:
				t.Errorf("%s: %s: no such command: %v", page, m[1], err)
				continue
			case !c.DisableFlagParsing:
				if err := c.ParseFlags(args); err != nil {
					t.Errorf("%s: %s: %v", page, m[1], err)
				}
			}
			if tour := c.Flags().Arg(0); c.Name() == "tour" && tour != "NAME" && !slices.Contains(tours, "../../examples/"+tour+"/README.md") {
				t.Errorf("%s: no tour %q", page, tour)
			}
		}
	}
}

// TestQuestions: the page has all questions, and each has a command or says that no lab shows it.
func TestQuestions(t *testing.T) {
	text, err := os.ReadFile("../../docs/questions.md")
	if err != nil {
		t.Fatal(err)
	}
	questions := regexp.MustCompile(`(?m)^\d+\. \*\*`).Split(string(text), -1)[1:]
	if len(questions) != 45 {
		t.Errorf("%d questions, want 45", len(questions))
	}
	for _, q := range questions {
		q, _, _ = strings.Cut(q, "\n#")
		title, answer, _ := strings.Cut(q, "** ")
		shows := regexp.MustCompile("`(?:sudo bin/)?packetwalk [^`]+`").MatchString(answer)
		if says := strings.Contains(strings.Join(strings.Fields(answer), " "), "o lab shows"); shows == says {
			t.Errorf("%s: a command: %v, says that no lab shows it: %v", title, shows, says)
		}
	}
}
