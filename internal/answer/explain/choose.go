package explain

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// choose keeps the outcomes that a word picks and returns their numbers. A number picks one outcome. Another word picks those with the
// address at which the packet ends, a host on the way or the label of a choice.
func choose(result *walk.Result, word string, objects *snapshot.Objects) ([]int, error) {
	if n, err := strconv.Atoi(word); err == nil {
		if n < 1 || n > len(result.Outcomes) {
			return nil, errors.New("outcome not found")
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
		return nil, errors.New("no outcome fits")
	}
	result.Outcomes = kept
	return numbers, nil
}

// list returns all outcomes, a line each.
func (o *Options) list(r *walk.Result) string {
	var b strings.Builder
	for _, s := range o.explanations(r) {
		fmt.Fprintln(&b, s.numbered(o.total(r)))
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

// MayChoose returns the outcomes that Options.Choose may keep, as far as they are known. For a number these are the outcomes up to it. For
// another word these are those that it fits, or all if it fits none or is "".
func MayChoose(outcomes []walk.Outcome, word string, objects *snapshot.Objects) []walk.Outcome {
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

// Choose keeps the outcomes that the word of --choose picks, and has the explanation number them among all. An error lists the outcomes.
func (o *Options) Choose(result *walk.Result, word string, objects *snapshot.Objects) error {
	total := len(result.Outcomes)
	numbers, err := choose(result, word, objects)
	if err != nil {
		return fmt.Errorf("--choose %s: %w; there are\n%s", word, err, o.list(result))
	}
	o.Numbers, o.Total = numbers, total
	o.Notes = append(o.Notes, fmt.Sprintf("chosen with --choose %s: %d of %d outcomes", word, len(numbers), total))
	return nil
}
