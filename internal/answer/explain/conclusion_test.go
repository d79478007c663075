package explain

import (
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// TestUndecided: a walk is undecided where an end, or which way is taken, is not known.
func TestIsUndecided(t *testing.T) {
	ends := func(kinds ...walk.EndKind) *walk.Result {
		r := &walk.Result{}
		for _, k := range kinds {
			r.Outcomes = append(r.Outcomes, walk.Outcome{End: walk.End{Kind: k}})
		}
		return r
	}
	reply := ends(walk.Delivered)
	reply.Outcomes[0].BackEnd = &walk.End{Kind: walk.Undecided}
	chosen := ends(walk.Delivered)
	chosen.Outcomes[0].Choices = []walk.Decision{{Choice: netfilter.Choice{Kind: netfilter.Unknown}}}
	open := ends(walk.Delivered, walk.Dropped)
	open.Outcomes[1].Choices = chosen.Outcomes[0].Choices
	alike := ends(walk.Delivered, walk.Delivered)
	alike.Outcomes[1].Choices = chosen.Outcomes[0].Choices
	otherRule := ends(walk.Dropped, walk.Dropped)
	otherRule.Outcomes[0].End.Why, otherRule.Outcomes[1].End.Why = "dropped by a 1", "dropped by b 2"
	otherRule.Outcomes[1].Choices = chosen.Outcomes[0].Choices
	unread := ends(walk.Delivered)
	unread.Outcomes[0].Unread = []int{31}
	disguised, disguisedReply := ends(walk.Delivered), ends(walk.Delivered)
	disguised.Outcomes[0].End.Disguise = "a program may show another source"
	disguisedReply.Outcomes[0].BackEnd = &disguised.Outcomes[0].End
	programOf := func(group string) *walk.Result {
		r := ends(walk.Delivered)
		about := walk.Intervention{Programs: []snapshot.Program{{Attach: "egress", ID: 7, Group: group}}}
		r.Outcomes[0].Choices = []walk.Decision{{Choice: netfilter.Choice{Kind: netfilter.Unknown, About: about}}}
		return r
	}
	for i, test := range []struct {
		result     *walk.Result
		live, want bool
	}{
		{ends(walk.Delivered), true, false}, {ends(walk.Dropped, walk.Left), false, false}, {ends(walk.Delivered, walk.Undecided), false, true},
		{reply, false, true}, {chosen, false, false}, {open, false, true}, {alike, false, false}, {otherRule, false, true}, {unread, false, true},
		{programOf("/pod"), true, true}, {programOf("/pod"), false, false}, {programOf("/"), true, false},
		{disguised, false, true}, {disguised, true, true}, {disguisedReply, false, true},
	} {
		if got := IsUndecided(test.result, test.live); got != test.want {
			t.Errorf("%d: %v", i, got)
		}
	}
}
