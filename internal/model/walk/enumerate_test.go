package walk

import (
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
)

// TestRemembered: what is not known is asked once by what it is about, not by its words; what came before is asked each time.
func TestRemembered(t *testing.T) {
	type about struct{ values []int }
	options := []netfilter.Option{{Label: "matches"}, {Label: "does not match"}}
	r := &transit{run: newRun(&walker{}, []int{0, 1, 1, 0}), m: &machine{Host: &snapshot.Host{}}}
	for i, c := range []struct {
		kind  netfilter.ChoiceKind
		about any
		want  int
	}{
		{netfilter.Unknown, &about{[]int{1}}, 0}, {netfilter.Unknown, &about{[]int{2}}, 1}, {netfilter.Unknown, &about{[]int{1}}, 0},
		{netfilter.Hash, &about{[]int{3}}, 1}, {netfilter.Hash, &about{[]int{3}}, 1}, {netfilter.History, &about{[]int{1}}, 0},
	} {
		if got := r.Choose(netfilter.Choice{Kind: c.kind, About: c.about, What: "the same words", Options: options}); got != c.want {
			t.Errorf("%d: %d, want %d", i, got, c.want)
		}
	}
}
