// Command words finds phrases of the old dialect, type names that are not nouns, and function comments without a verb ("X is …"), in files
// of the repository.
//
//	git ls-files | words
//
// It prints "file:line: word; write replacement" for each, and exits with status 1 if there is any. Function comments have a limit for each
// directory (mostComments), which may only fall. make lint runs it.
package main

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

func main() {
	found := false
	comments, listed := map[string]int{}, map[string][]string{}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		name := lines.Text()
		if isExempt(name) {
			continue
		}
		data, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // deleted, and not yet committed
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "words:", err)
			os.Exit(2)
		}
		findings, err := check(name, data)
		if err != nil {
			fmt.Fprintln(os.Stderr, "words:", err)
			os.Exit(2)
		}
		for _, f := range findings {
			text := fmt.Sprintf("%s:%d: %q; write %q\n", name, f.line, f.word, f.replacement)
			if dir := path.Dir(name); f.functionComment {
				comments[dir]++
				listed[dir] = append(listed[dir], text)
				continue
			}
			found = true
			fmt.Print(text)
		}
	}
	for dir, n := range comments {
		if n > mostComments[dir] {
			fmt.Print(strings.Join(listed[dir], ""))
		}
	}
	for _, text := range compareCounts(comments, mostComments) {
		found = true
		fmt.Println(text)
	}
	if found {
		os.Exit(1)
	}
}

// isExempt reports whether a file is not checked: test data, what others wrote, and the paths that are still to be rewritten.
func isExempt(name string) bool {
	for _, path := range exempt {
		if strings.HasPrefix(name, path) {
			return true
		}
	}
	return strings.Contains(name, "/testdata/") || strings.HasSuffix(name, ".txtar")
}

// compareCounts returns a sentence for each directory whose count differs from its limit: one that fell must lower it.
func compareCounts(counts, most map[string]int) (texts []string) {
	dirs := maps.Clone(counts)
	maps.Copy(dirs, most)
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		switch n, limit := counts[dir], most[dir]; {
		case n > limit:
			texts = append(texts, fmt.Sprintf("%s: %d function comments without a verb, limit %d", dir, n, limit))
		case n < limit:
			texts = append(texts, fmt.Sprintf("%s: lower the limit of function comments without a verb from %d to %d", dir, limit, n))
		}
	}
	return texts
}
