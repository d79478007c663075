package explain

import (
	"bytes"
	"encoding/json"
	"testing"
)

// TestNeighbours: with every rule noted, those that did not apply stand beside the next one that did, and nothing else changes.
func TestNeighbours(t *testing.T) {
	e := fromInternet(t)
	o := Options{Owners: ownersOf(e.objects)}
	plain := decode(t, func(b *bytes.Buffer) error { return JSON(b, e.result, o) })
	o.Neighbours = true
	near := decode(t, func(b *bytes.Buffer) error { return JSON(b, e.everyRule, o) })
	before, after := 0, 0
	for i := range near.Outcomes {
		for _, results := range [][]NodeDoc{near.Outcomes[i].Results, near.Outcomes[i].Reply} {
			for j := range results {
				for k := range results[j].Observations {
					r := results[j].Observations[k].Rule
					if r == nil {
						continue
					}
					before, after = before+len(r.Before), after+len(r.After)
					for _, b := range r.Before {
						if b.Chain != r.Chain || b.Verdict != "break" || b.Failed == "" || r.Number != 0 && b.Number >= r.Number {
							t.Errorf("rule %s %d has the neighbour %+v", r.Chain, r.Number, b)
						}
					}
					if r.Unmatched < len(r.Before) || len(r.Before) > mostBefore || len(r.After) > mostAfter {
						t.Errorf("rule %s %d: %d before of %d, %d after", r.Chain, r.Number, len(r.Before), r.Unmatched, len(r.After))
					}
					r.Before, r.Unmatched, r.After = nil, 0, nil
				}
			}
		}
	}
	if before == 0 || after == 0 {
		t.Errorf("%d rules before and %d after; want some", before, after)
	}
	a, _ := json.MarshalIndent(plain, "", " ")
	b, _ := json.MarshalIndent(near, "", " ")
	if !bytes.Equal(a, b) {
		t.Errorf("without neighbours the walk is another one:\n%s\n%s", a, b)
	}
}

func decode(t *testing.T, write func(*bytes.Buffer) error) Document {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	var d Document
	if err := json.Unmarshal(b.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	return d
}
