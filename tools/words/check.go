package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// finding is a word that is not to be used, and what to write instead.
type finding struct {
	line              int
	word, replacement string
	functionComment   bool // counted by directory; see mostComments
}

var patterns = compile()

func compile() []*regexp.Regexp {
	all := make([]*regexp.Regexp, len(phrases))
	for i, p := range phrases {
		all[i] = regexp.MustCompile(`(?i)\b` + strings.ReplaceAll(regexp.QuoteMeta(p.phrase), " ", `\s+(?://\s+|#\s+)?`) + `\b`)
	}
	return all
}

// check finds the phrases, type names and function comments in a file: in comments, string literals and types of Go, in Markdown outside of code blocks, and in
// comments of YAML, shell and make.
func check(name string, data []byte) ([]finding, error) {
	switch {
	case strings.HasSuffix(name, ".go"):
		return checkGo(name, data)
	case strings.HasSuffix(name, ".md"):
		return checkLines(data, markdownText()), nil
	case isCommented(name, data):
		return checkLines(data, func(line string) string {
			_, comment, _ := strings.Cut(line, "#")
			return comment
		}), nil
	}
	return nil, nil
}

func isCommented(name string, data []byte) bool {
	return slices.Contains([]string{".yaml", ".yml", ".sh", ".mk"}, path.Ext(name)) || path.Base(name) == "Makefile" ||
		bytes.HasPrefix(data, []byte("#!")) && bytes.Contains(data[:min(len(data), 40)], []byte("sh"))
}

// markdownText returns a function that gives each line of a page, or "" for lines of code blocks.
func markdownText() func(string) string {
	fenced := false
	return func(line string) string {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			return ""
		}
		if fenced {
			return ""
		}
		return line
	}
}

func checkLines(data []byte, text func(string) string) (all []finding) {
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		all = append(all, find(text(line), number)...)
	}
	return all
}

func checkGo(name string, data []byte) (all []finding, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, data, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	line := func(p token.Pos) int { return fset.Position(p).Line }
	for _, group := range file.Comments {
		var text strings.Builder
		for _, c := range group.List {
			text.WriteString(c.Text + "\n")
		}
		all = append(all, find(text.String(), line(group.Pos()))...)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				all = append(all, find(n.Value, line(n.Pos()))...)
			}
		case *ast.TypeSpec:
			if !isNoun(n.Name.Name) {
				all = append(all, finding{line: line(n.Pos()), word: "type " + n.Name.Name, replacement: "a noun"})
			}
		case *ast.FuncDecl:
			if verb := copula(n); verb != "" {
				all = append(all, finding{line(n.Doc.Pos()), n.Name.Name + " " + verb, n.Name.Name + " returns, reports or makes …", true})
			}
		}
		return true
	})
	slices.SortStableFunc(all, func(a, b finding) int { return a.line - b.line })
	return all, nil
}

// copula returns "is" or "are" for a function whose comment begins with its name and that word, where a verb should say what it does.
func copula(f *ast.FuncDecl) string {
	words := strings.Fields(f.Doc.Text())
	if len(words) > 1 && words[0] == f.Name.Name && (words[1] == "is" || words[1] == "are") {
		return words[1]
	}
	return ""
}

// find returns the phrases of a text whose first line has the number.
func find(text string, line int) (all []finding) {
	for i, pattern := range patterns {
		for _, at := range pattern.FindAllStringIndex(text, -1) {
			all = append(all, finding{line: line + strings.Count(text[:at[0]], "\n"), word: phrases[i].phrase, replacement: phrases[i].replacement})
		}
	}
	return all
}

// isNoun reports whether a type's name ends with a noun. It knows participles by their ending, and other words by a list.
func isNoun(name string) bool {
	last := lastWord(name)
	if slices.Contains(nouns, last) {
		return true
	}
	return !strings.HasSuffix(last, "ed") && !strings.HasSuffix(last, "ing") && !slices.Contains(otherWords, last)
}

// lastWord returns the last word of a name in camel case, in lower case.
func lastWord(name string) string {
	start := strings.LastIndexFunc(name, unicode.IsUpper)
	return strings.ToLower(name[max(start, 0):])
}
