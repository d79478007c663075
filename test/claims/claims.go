// Package claims holds the list of what the articles show, numbered, and one test for each claim that is built: TestA1 for A1, and so on,
// on a running cluster driven as a user drives it. "make claims" prints the list with what the tests say.
//
// It must not import packetwalk's internal packages other than for text claims: it sees what a user sees.
package claims

import (
	_ "embed"
	"strings"
)

//go:embed claims.txt
var list string

// Claim is one observable thing that an article shows.
type Claim struct {
	ID    string // A1; the letter is the article's
	Title string
}

// Test returns the name of the claim's test.
func (c Claim) Test() string { return "Test" + c.ID }

// All gives the claims in their order.
func All() []Claim {
	var all []Claim
	for line := range strings.Lines(list) {
		id, title, _ := strings.Cut(strings.TrimSpace(line), " ")
		all = append(all, Claim{ID: id, Title: strings.TrimSpace(title)})
	}
	return all
}
