package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/test/claims"
)

// TestTable: what go test says becomes the states of the claims; a subtest's end is not its test's, and a test cut off has failed.
func TestTable(t *testing.T) {
	const events = `
{"Action":"run","Test":"TestA1"}
{"Action":"run","Test":"TestA1/svc"}
{"Action":"fail","Test":"TestA1/svc"}
{"Action":"pass","Test":"TestA1","Elapsed":1.5}
{"Action":"output","Test":"TestA2","Output":"no such rule\n"}
{"Action":"fail","Test":"TestA2"}
{"Action":"skip","Test":"TestA3"}
{"Action":"run","Test":"TestA4"}
{"Action":"pass","Test":"TestA10"}
{"Action":"pass","Test":"TestHelper"}
not json
{"Action":"output","Output":"FAIL\n"}
`
	var progress, table strings.Builder
	r, err := read(strings.NewReader(strings.TrimSpace(events)), &progress)
	if err != nil {
		t.Fatal(err)
	}
	all := []claims.Claim{{ID: "A1", Title: "one"}, {ID: "A2", Title: "two"}, {ID: "A3"}, {ID: "A4"}, {ID: "A10"}, {ID: "B1", Title: "six"}}
	if bad := r.table(&table, "of the articles", all); bad != 4 {
		t.Errorf("%d bad, want 4", bad)
	}
	for _, want := range []string{"A1   pass           one\n", "A2   FAIL           two\n", "A3   skipped", "A4   FAIL", "A10  pass",
		"B1   no test        six\n", "6 claims of the articles: 2 pass, 4 do not\n"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
	for _, want := range []string{"no such rule", "not json", "FAIL\n"} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("no %q in the progress\n%s", want, progress.String())
		}
	}
}

// TestPattern: the tests of claims are run, and no others.
func TestPattern(t *testing.T) {
	run := regexp.MustCompile(pattern([]claims.Claim{{ID: "A1"}, {ID: "B2"}}))
	for name, want := range map[string]bool{"TestA1": true, "TestB2": true, "TestA10": false, "TestKubenet": false} {
		if run.MatchString(name) != want {
			t.Errorf("%s is run: %t, want %t", name, !want, want)
		}
	}
}

// TestAll: the list is whole and its ids are unique.
func TestAll(t *testing.T) {
	seen, count := map[string]bool{}, map[byte]int{}
	all := slices.Concat(claims.Articles(), claims.Today())
	for _, c := range all {
		if c.Title == "" || seen[c.ID] {
			t.Errorf("claim %q without a title, or twice", c.ID)
		}
		seen[c.ID] = true
		count[c.ID[0]]++
	}
	for letter, n := range map[byte]int{'A': 14, 'B': 10, 'C': 9, 'D': 8, 'E': 17, 'F': 14, 'G': 13, 'H': 7, 'L': 3} {
		if count[letter] != n {
			t.Errorf("%d claims %c, want %d", count[letter], letter, n)
		}
	}
	if n := (results{}).table(io.Discard, "", all); n != len(all) {
		t.Errorf("nothing ran and %d claims are bad, want all", n)
	}
}

// TestEachHasATest: the tests that there are, by their names.
func TestEachHasATest(t *testing.T) {
	files, err := filepath.Glob("../../test/claims/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				tests[fn.Name.Name] = true
			}
		}
	}
	for _, c := range slices.Concat(claims.Articles(), claims.Today()) {
		if !tests[c.Test()] {
			t.Errorf("claim %s has no %s", c.ID, c.Test())
		}
	}
}
