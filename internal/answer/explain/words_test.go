package explain

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
)

// TestWordsPage: docs/walk-words.md explains every word that a line of a walk may start with, and no other.
func TestWordsPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/walk-words.md")
	if err != nil {
		t.Fatal(err)
	}
	lines, _, _ := strings.Cut(string(page), "## Addresses")
	explained := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllStringSubmatch(lines, -1) {
		for _, word := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(row[1], -1) {
			explained[word[1]] = true
		}
	}
	used := map[string]bool{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	label := regexp.MustCompile(`label: "([a-z]+)"|l\.label, l\.text = "([a-z]+)"|"(?:mark|connmark)": "([a-z]+)"|return "([sd]nat)"`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range label.FindAllStringSubmatch(string(text), -1) {
			used[strings.Join(m[1:], "")] = true
		}
	}
	for _, word := range verdictLabels {
		used[word] = true
	}
	for kind := netfilter.Continue; kind <= netfilter.Undecided; kind++ {
		if verdictLabels[kind] == "" && kind != netfilter.Break {
			used[kind.String()] = true // with -o wide
		}
	}
	for word := range used {
		if !explained[word] {
			t.Errorf("%q is not explained", word)
		}
	}
	for word := range explained {
		if !used[word] {
			t.Errorf("%q is explained, and no line starts with it", word)
		}
	}
}
