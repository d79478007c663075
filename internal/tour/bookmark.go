package tour

import (
	"cmp"
	"slices"
)

// A Bookmark holds the place of a reader who ended a tour, and the names that the tour had learned.
type Bookmark struct {
	Step  int           `json:"step"` // the last step that ran, from 1
	Names []LearnedName `json:"names"`
}

// A LearnedName holds the name that one of the page's has in the reader's cluster.
type LearnedName struct {
	Kind string `json:"kind"`
	Page string `json:"page"`
	Here string `json:"here"`
}

// learned returns all names, sorted.
func (n *Names) learned() []LearnedName {
	all := make([]LearnedName, 0, len(n.here))
	for page, here := range n.here {
		all = append(all, LearnedName{page.kind, page.text, here})
	}
	slices.SortFunc(all, func(a, b LearnedName) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Page, b.Page)) })
	return all
}

// recall takes over names that learned returned.
func (n *Names) recall(all []LearnedName) {
	for _, l := range all {
		n.here[name{l.Kind, l.Page}] = l.Here
		n.page[name{l.Kind, l.Here}] = l.Page
	}
}
