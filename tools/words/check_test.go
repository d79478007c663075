package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name, file, text string
		want             []string
	}{
		{"comment", "a.go", "package a\n\n// f tells whether it is.\nfunc f() {}\n", []string{"tells whether"}},
		{"comment over two lines", "a.go", "package a\n\n// f tells\n// whether it is.\nfunc f() {}\n", []string{"tells whether"}},
		{"string", "a.go", "package a\n\nvar s = \"5 octets\"\n", []string{"octets"}},
		{"identifier", "a.go", "package a\n\nvar whom = 1\n", nil},
		{"participle", "a.go", "package a\n\ntype placed int\n", []string{"type placed"}},
		{"adjective", "a.go", "package a\n\ntype known int\n", []string{"type known"}},
		{"last word", "a.go", "package a\n\ntype hostKnown int\n", []string{"type hostKnown"}},
		{"nouns", "a.go", "package a\n\ntype Peering int\n\ntype knownRules int\n\ntype seed int\n", nil},
		{"ordinary sentence", "a.go", "package a\n\n// The user nobody is a known user, and owned by root.\nvar x int\n", nil},
		{"function's comment", "a.go", "package a\n\n// f is the sum.\nfunc f() int { return 1 }\n", []string{"f is"}},
		{"method's comment", "a.go", "package a\n\ntype t int\n\n// all are\n// the sums.\nfunc (t) all() {}\n", []string{"all are"}},
		{"function's comment with a verb", "a.go", "package a\n\n// f returns what is the sum.\nfunc f() int { return 1 }\n", nil},
		{"page", "a.md", "It is away.\n", []string{"is away"}},
		{"code block", "a.md", "```\nit is away\n```\nIt is here.\n", nil},
		{"YAML", "a.yaml", "whom: 1 # of whom\n", []string{"whom"}},
		{"shell", "scripts/a", "#!/bin/sh\n# 5 octets\necho octets\n", []string{"octets"}},
		{"other files", "a.txt", "of whom\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			findings, err := check(c.file, []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range findings {
				got = append(got, f.word)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestLine(t *testing.T) {
	findings, err := check("a.go", []byte("package a\n\n// One line.\n// It is away.\nvar x int\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []finding{{line: 4, word: "is away", replacement: "is missing"}}; !cmp.Equal(want, findings, cmp.AllowUnexported(finding{})) {
		t.Errorf("got %v, want %v", findings, want)
	}
}

func TestCompareCounts(t *testing.T) {
	most := map[string]int{"a": 2, "b": 1, "d": 1}
	got := compareCounts(map[string]int{"a": 1, "b": 2, "c": 1}, most)
	want := []string{"a: lower the limit of function comments without a verb from 2 to 1", "b: 2 function comments without a verb, limit 1",
		"c: 1 function comments without a verb, limit 0", "d: lower the limit of function comments without a verb from 1 to 0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
