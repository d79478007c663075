package explain

import (
	"slices"
	"testing"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/model/witness"
)

// TestAddReport: of a packet that was sent, the outcomes that the kernel may have taken are left, with their numbers; of one that was not
// sent all are left, and nothing is concluded from the kernel.
func TestAddReport(t *testing.T) {
	walked := fromInternet(t).result
	for name, c := range map[string]struct {
		report  proof.Report
		numbers []int
		note    string
		live    bool
	}{
		"one way":  {proof.Report{Candidates: []int{1}}, []int{2}, "the kernel went way 2 of 2; without --live all are shown", true},
		"two ways": {proof.Report{Candidates: []int{0, 1}}, []int{1, 2}, "the kernel went one of 2 ways of 2, which differ only in what was not seen", true},
		"not sent": {proof.Report{NotSent: "a loop"}, nil, "kernel: not asked, because the packet could go round without end: a loop", false},
		"changed":  {proof.Report{Candidates: []int{0}, Changed: []string{"node/a: rules"}}, []int{1}, "sent again, because meanwhile something changed at node/a: rules", true},
	} {
		t.Run(name, func(t *testing.T) {
			var o Options
			c.report.Answer.Answer = witness.Connected
			result, err := o.AddReport(worldA(t), walked, &c.report)
			if err != nil {
				t.Fatal(err)
			}
			if want := len(c.report.Candidates); c.live && len(result.Outcomes) != want || !c.live && len(result.Outcomes) != len(walked.Outcomes) {
				t.Errorf("%d outcomes are left", len(result.Outcomes))
			}
			if !slices.Equal(o.Numbers, c.numbers) || !slices.Contains(o.Notes, c.note) {
				t.Errorf("numbers %v, notes %q", o.Numbers, o.Notes)
			}
			if (o.Live != nil) != c.live || c.live && o.Live.Answer != "the connection was established" {
				t.Errorf("live: %+v", o.Live)
			}
		})
	}
}
