package layers

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxLines   = 500 // of a file
	maxColumns = 140 // of a line; a tab is one
	maxBeside  = 60  // of a longer line, beside its strings
)

// TestSize: every Go file can be read at one sitting, and every line without scrolling. A line may be longer because of its strings: they
// are data.
func TestSize(t *testing.T) {
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.go")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for file := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		source, err := os.ReadFile(root + file)
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range size(source) {
			t.Errorf("%s%s", file, problem)
		}
	}
}

// size says what is too long of a Go file.
func size(source []byte) (problems []string) {
	if n := bytes.Count(source, []byte("\n")); n > maxLines {
		problems = append(problems, fmt.Sprintf(": %d lines; split it by subject, at most %d", n, maxLines))
	}
	data := stringLines(source)
	for i, line := range bytes.Split(source, []byte("\n")) {
		if n := utf8.RuneCount(line); n > maxColumns && !data[i+1] {
			problems = append(problems, fmt.Sprintf(":%d: %d columns, at most %d", i+1, n, maxColumns))
		}
	}
	return problems
}

// stringLines are the lines, from 1, that are long because of their strings: one crosses maxColumns, or hardly anything else is there.
func stringLines(source []byte) map[int]bool {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	lines, without := map[int]bool{}, strings.Split(string(source), "\n")
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok != token.STRING {
			continue
		}
		at := file.Position(pos)
		before := utf8.RuneCount(source[at.Offset-at.Column+1 : at.Offset])
		for i, part := range strings.Split(text, "\n") {
			line := at.Line + i
			lines[line] = lines[line] || before <= maxColumns && before+utf8.RuneCountInString(part) > maxColumns
			without[line-1] = strings.Replace(without[line-1], part, "", 1)
			before = 0
		}
	}
	for i, rest := range without {
		lines[i+1] = lines[i+1] || utf8.RuneCountInString(strings.Join(strings.Fields(rest), " ")) <= maxBeside
	}
	return lines
}

// TestSizes: what is too long, and what is not.
func TestSizes(t *testing.T) {
	long := strings.Repeat("x", maxColumns)
	for source, want := range map[string]int{
		"package p\n":                                  0,
		"package p\n// " + long + "\n":                 1,
		"package p\nvar " + long + " = 1\n":            1,
		"package p\nvar v = \"" + long + "\"\n":        0,
		"package p\nvar v = `\n" + long + "y\n`\n":     0,
		"package p\nvar v = `\n\n` + " + long + "\n":   1,
		"package p\nvar " + long + " = \"s\"\n":        1,
		"package p\n// " + long[:maxColumns-4] + "ä\n": 0,
		strings.Repeat("\n", maxLines) + "package p":   0,
		strings.Repeat("\n", maxLines+1):               1,
	} {
		if got := size([]byte(source)); len(got) != want {
			t.Errorf("%.40q: %q, want %d", source, got, want)
		}
	}
}
