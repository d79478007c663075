package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/model/walk"
)

// choose keeps the outcomes that --choose picks: one by its number as printed, or those that a word fits, an address that the packet ends
// at, a host on the way, the label of a choice. It returns their numbers.
func choose(result *walk.Result, word string, endings []string) ([]int, error) {
	if n, err := strconv.Atoi(word); err == nil {
		if n < 1 || n > len(result.Outcomes) {
			return nil, fmt.Errorf("--choose %d: there is no such outcome; there are\n%s", n, numbered(endings))
		}
		result.Outcomes = result.Outcomes[n-1 : n]
		return []int{n}, nil
	}
	var numbers []int
	var kept []walk.Outcome
	for i := range result.Outcomes {
		if fits(&result.Outcomes[i], word) {
			numbers = append(numbers, i+1)
			kept = append(kept, result.Outcomes[i])
		}
	}
	if len(kept) == 0 {
		return nil, fmt.Errorf("--choose %s: no outcome fits; there are\n%s", word, numbered(endings))
	}
	result.Outcomes = kept
	return numbers, nil
}

func numbered(endings []string) string {
	var b strings.Builder
	for i, e := range endings {
		fmt.Fprintf(&b, "%d: %s\n", i+1, e)
	}
	return b.String()
}

// fits tells whether a word picks an outcome.
func fits(o *walk.Outcome, word string) bool {
	end := &o.End.Packet
	if word == end.DestinationEnd() || word == end.Destination.String() || hostFits(o.End.Host, word) {
		return true
	}
	if slices.ContainsFunc(o.There, func(s walk.Step) bool { return hostFits(s.Host, word) }) {
		return true
	}
	return slices.ContainsFunc(o.Choices, func(c walk.Chosen) bool {
		return c.Answer < len(c.Options) && c.Options[c.Answer].Label == word
	})
}

// hostFits tells whether a word is a host's name, with or without its kind.
func hostFits(host, word string) bool { return host == word || strings.HasSuffix(host, "/"+word) }

// chosenOptions are the explaining options of what --choose left.
func chosenOptions(o *explain.Options, result *walk.Result, word string) error {
	total := len(result.Outcomes)
	numbers, err := choose(result, word, explain.Endings(result, *o))
	if err != nil {
		return badInput{err}
	}
	o.Numbers, o.Total = numbers, total
	o.Notes = append(o.Notes, fmt.Sprintf("chosen with --choose %s: %d of %d outcomes", word, len(numbers), total))
	return nil
}
