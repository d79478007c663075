package pages

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is where the pages are.
const root = "../.."

// all returns the pages that people read, by their paths from the root.
func all(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/dev/*.md", "examples/*/*.md"} {
		files, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				t.Fatal(err)
			}
			pages[file] = string(text)
		}
	}
	if len(pages) < 10 {
		t.Fatalf("only %d pages found", len(pages))
	}
	return pages
}

var (
	link  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code  = regexp.MustCompile("(?s)```.*?\n```|`[^`\n]*`")
	title = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// broken gives the links of a page that lead nowhere: files that are not there, headings that a page does not have. exists answers for the
// former.
func broken(file string, pages map[string]string, exists func(string) bool) []string {
	var bad []string
	for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(pages[file], ""), -1) {
		if strings.Contains(m[1], "://") {
			continue
		}
		path, anchor, _ := strings.Cut(m[1], "#")
		target := file
		if path != "" {
			target = filepath.Join(filepath.Dir(file), path)
		}
		if !exists(target) || anchor != "" && !anchors(pages[target])[anchor] {
			bad = append(bad, m[1])
		}
	}
	return bad
}

// anchors returns the anchors that a page's headings get.
func anchors(page string) map[string]bool {
	has := map[string]bool{}
	for _, m := range title.FindAllStringSubmatch(page, -1) {
		words := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		has[strings.ReplaceAll(words, " ", "-")] = true
	}
	return has
}

func TestLinks(t *testing.T) {
	exists := func(path string) bool { _, err := os.Stat(filepath.Join(root, path)); return err == nil }
	pages := all(t)
	for file := range pages {
		for _, to := range broken(file, pages, exists) {
			t.Errorf("%s: nothing is at %s", file, to)
		}
	}
}

// TestBroken: a link to a missing file or heading is found, and only such a one.
func TestBroken(t *testing.T) {
	pages := map[string]string{
		"a.md":   "# One two\n[x](b/c.md) [y](#one-two) [z](https://example.com) `[w](none)` [v](none.md) [u](#none) ![p](b/c.md#there)\n",
		"b/c.md": "## There\n[up](../a.md)\n",
	}
	exists := func(path string) bool { return pages[path] != "" }
	if got := strings.Join(broken("a.md", pages, exists), " "); got != "none.md #none" {
		t.Errorf("broken: %s", got)
	}
	if got := broken("b/c.md", pages, exists); got != nil {
		t.Errorf("broken: %s", got)
	}
}

// TestLengths: the first page that people see stays short.
func TestLengths(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if n, most := bytes.Count(text, []byte("\n")), 130; n > most {
		t.Errorf("README.md has %d lines: at most %d, the rest belongs under docs/", n, most)
	}
}
