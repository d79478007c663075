package proof

import (
	"math/rand/v2"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// maxTries bounds the search among outcomes that were not enumerated.
const maxTries = 2000

// search looks for the outcome that the kernel took where there are more than the walk enumerates. It goes from choice to choice along with
// the kernel: of an outcome that parts from it at one step, only choices made before that step can be wrong. What it finds is the result's
// last outcome then.
func search(source snapshot.Source, result *walk.Result, o *Observation, best Report) (Report, error) {
	request := result.Request
	request.MaxOutcomes = 1
	id, known := identify(o, &request), len(result.Outcomes)
	for range maxTries {
		try, err := walk.Walk(source, request)
		if err != nil {
			return best, err
		}
		outcome := &try.Outcomes[0]
		r := compareOutcome(outcome, o, id, senderOf(&request))
		r.Outcome, r.Candidates, r.Answer = known, []int{known}, o.Answer
		if r.First == nil || r.isCloser(best) {
			result.Outcomes = append(result.Outcomes[:known], *outcome) // of a packet that goes round, one takes 20 MB
			best = r
		}
		if r.First == nil {
			return best, nil
		}
		blamed := outcome.Choices
		if r.firm != nil {
			blamed = before(blamed, r.firm.position)
		}
		pin, ok := walk.NextPin(blamed, len(result.Request.Pin))
		if !ok {
			return best, nil
		}
		request.Pin = pin
	}
	best.Abandoned = true
	return best, nil
}

// before returns the choices that can show in the step at a position.
func before(choices []walk.Decision, position int) []walk.Decision {
	for i := range choices {
		if choices[i].Step > position {
			return choices[:i]
		}
	}
	return choices
}

// samples is how many outcomes beside the enumerated ones are looked at for what packets to expect where, and sampledSteps bounds the steps
// of all of them: one outcome of a packet that goes round has twenty thousand.
const (
	samples      = 300
	sampledSteps = 100_000
)

// sample adds outcomes from all over to those that were enumerated, which are alike in their first choices.
func sample(source snapshot.Source, result *walk.Result) ([]walk.Outcome, error) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // not a secret, and the same each time
	outcomes := result.Outcomes[:len(result.Outcomes):len(result.Outcomes)]
	request := result.Request
	request.MaxOutcomes = 1
	for n, steps := 0, 0; n < samples && steps < sampledSteps; n++ {
		from := &outcomes[random.IntN(len(outcomes))]
		pinned := len(result.Request.Pin)
		if len(from.Choices) <= pinned {
			continue
		}
		at := pinned + random.IntN(len(from.Choices)-pinned)
		request.Pin = make([]int, at+1)
		for i := range at {
			request.Pin[i] = from.Choices[i].Answer
		}
		request.Pin[at] = random.IntN(len(from.Choices[at].Options))
		more, err := walk.Walk(source, request)
		if err != nil {
			return nil, err
		}
		for _, o := range more.Outcomes {
			outcomes = append(outcomes, o)
			steps += len(o.There) + len(o.Back)
		}
	}
	return outcomes, nil
}
