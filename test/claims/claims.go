// Package claims holds the lists of what the articles show and of what AKS's clusters of today show, numbered, and one test for each claim
// that is built: TestA1 for A1, and so on, on a running cluster driven as a user drives it. "make claims" prints the lists with what the
// tests say. Its other tests prove walks on the same clusters.
//
// It must not import packetwalk's internal packages other than for text claims and documents: it sees what a user sees.
package claims

import (
	_ "embed"
	"strings"
)

//go:embed claims.txt
var articles string

//go:embed today.txt
var today string

// Claim is one observable thing.
type Claim struct {
	ID    string // A1; the letter is the article's, or the part's of AKS that it is about
	Title string
}

// Test returns the name of the claim's test.
func (c Claim) Test() string { return "Test" + c.ID }

// Articles gives the articles' claims in their order.
func Articles() []Claim { return read(articles) }

// Today gives the claims about AKS of today.
func Today() []Claim { return read(today) }

func read(list string) []Claim {
	var all []Claim
	for line := range strings.Lines(list) {
		id, title, _ := strings.Cut(strings.TrimSpace(line), " ")
		all = append(all, Claim{ID: id, Title: strings.TrimSpace(title)})
	}
	return all
}
