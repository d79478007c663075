// Command words finds phrases of the old dialect, and type names that are not nouns, in files of the repository.
//
//	git ls-files | words
//
// It prints "file:line: word; write replacement" for each, and exits with status 1 if there is any. make lint runs it.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

func main() {
	found := false
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
			found = true
			fmt.Printf("%s:%d: %q; write %q\n", name, f.line, f.word, f.replacement)
		}
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
