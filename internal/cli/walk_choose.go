package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// choose keeps the outcomes that --choose picks: one by its number as printed, or those that a word fits, an address that the packet ends
// at, a host on the way, the label of a choice. It returns their numbers.
func choose(result *walk.Result, word string, objects *snapshot.Objects, endings []string) ([]int, error) {
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
		if fits(&result.Outcomes[i], word, objects) {
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

// fits reports whether a word picks an outcome. The name of the pod that the packet is for at the end does, whether the pod was read or
// not.
func fits(o *walk.Outcome, word string, objects *snapshot.Objects) bool {
	end := &o.End.Packet
	if slices.ContainsFunc(objects.Pods, func(p snapshot.Pod) bool {
		return slices.Contains(p.IPs, end.Destination) && hostFits("pod/"+p.Namespace+"/"+p.Name, word)
	}) {
		return true
	}
	if word == end.DestinationEnd() || word == end.Destination.String() || hostFits(o.End.Host, word) {
		return true
	}
	if slices.ContainsFunc(o.There, func(s walk.Step) bool { return hostFits(s.Host, word) }) {
		return true
	}
	return slices.ContainsFunc(o.Choices, func(c walk.Decision) bool {
		return c.Answer < len(c.Options) && c.Options[c.Answer].Label == word
	})
}

// mayChoose returns the outcomes that a word of --choose may pick as far as they are known: of a number those up to it, of another word those
// that it fits, or all where it fits none, or is "".
func mayChoose(outcomes []walk.Outcome, word string, objects *snapshot.Objects) []walk.Outcome {
	if n, err := strconv.Atoi(word); err == nil {
		return outcomes[:min(max(n, 0), len(outcomes))]
	}
	if word != "" {
		fit := slices.DeleteFunc(slices.Clone(outcomes), func(o walk.Outcome) bool { return !fits(&o, word, objects) })
		if len(fit) > 0 {
			return fit
		}
	}
	return outcomes
}

// hostFits reports whether a word is a host's name, with or without its kind.
func hostFits(host, word string) bool { return host == word || strings.HasSuffix(host, "/"+word) }

// chosenOptions are the explaining options of what --choose left.
func chosenOptions(o *explain.Options, result *walk.Result, word string, objects *snapshot.Objects) error {
	total := len(result.Outcomes)
	numbers, err := choose(result, word, objects, explain.Endings(result, *o))
	if err != nil {
		return badInput{err}
	}
	o.Numbers, o.Total = numbers, total
	o.Notes = append(o.Notes, fmt.Sprintf("chosen with --choose %s: %d of %d outcomes", word, len(numbers), total))
	return nil
}
