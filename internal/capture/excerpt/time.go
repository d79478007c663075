package excerpt

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// A text may show the same chains at several times: an article changes a service and lists its rules again. With whole chains that is seen
// at once. Of a command like "iptables-save | grep A | grep B" it is known which rules it would have shown: those with A and B in them.
// Where one of them was shown before and is not shown now, and another is new, the rules have changed.

// filter is what "| grep WORD" lets pass. The zero value lets everything pass.
type filter struct {
	words []string
	fold  []bool // whether capitals do not count
}

var plainWord = regexp.MustCompile(`^[\w./:-]+(?: [\w./:-]+)*$`)

// filterOf reads the part of a command line behind its first "|". known is false where it is more than grep for words.
func filterOf(line string) (f filter, known bool) {
	stages := strings.Split(line, "|")[1:]
	for _, stage := range stages {
		stage = strings.TrimPrefix(strings.TrimSpace(stage), "sudo ")
		rest, ok := strings.CutPrefix(stage, "grep ")
		if !ok {
			return filter{}, false
		}
		fold := false
		rest = strings.TrimSpace(rest)
		for _, option := range []string{"-i ", "-F ", "-e ", "-- "} {
			if after, ok := strings.CutPrefix(rest, option); ok {
				rest, fold = strings.TrimSpace(after), fold || option == "-i "
			}
		}
		word := strings.TrimPrefix(strings.Trim(rest, `"'`), `\`)
		if strings.HasPrefix(rest, "-") || !plainWord.MatchString(word) {
			return filter{}, false
		}
		f.words, f.fold = append(f.words, word), append(f.fold, fold)
	}
	return f, len(stages) > 0
}

func (f filter) passes(line string) bool {
	for i, word := range f.words {
		if f.fold[i] && !strings.Contains(strings.ToLower(line), strings.ToLower(word)) || !f.fold[i] && !strings.Contains(line, word) {
			return false
		}
	}
	return true
}

// chooseTime keeps the rules of one time: the last at which one of the addresses is in the rules, else the last.
func (s *scanner) chooseTime(about []netip.Addr) {
	times := s.times()
	if len(times) < 2 {
		return
	}
	within := func(r *run, i int) bool { return r.line >= times[i] && (i+1 == len(times) || r.line < times[i+1]) }
	choice, why := len(times)-1, "the last"
	for i := len(times) - 1; i >= 0; i-- {
		if a, ok := s.names(about, func(r *run) bool { return within(r, i) }); ok {
			if choice != i {
				choice, why = i, fmt.Sprintf("the last that have %s", a)
			}
			break
		}
	}
	first := make([]string, len(times)) // line with rules
	for i := range times {
		if at := slices.IndexFunc(s.found, func(r *run) bool { return within(r, i) }); at >= 0 {
			first[i] = fmt.Sprint(s.found[at].line)
		}
	}
	s.found = slices.DeleteFunc(s.found, func(r *run) bool { return !within(r, choice) })
	s.assume(conflict, times[choice], "the rules are shown at %d times and differ, from lines %s: those from line %s are taken, %s",
		len(times), strings.Join(first, ", "), first[choice], why)
}

// times are the lines at which what the text shows begins, and begins to be different.
func (s *scanner) times() []int {
	times := []int{0}
	seen := s.sightings()
	for i, first := range seen {
		if first.run.filter.words == nil || i > 0 && seen[i-1].run.command == first.run.command {
			continue
		}
		since := times[len(times)-1]
		if changed(seen, first.run, since, func(line int) bool { return first.run.filter.passes(s.lines[line-1]) }) {
			times = append(times, first.run.command)
		}
	}
	return times
}

// sighting is a rule that a command printed.
type sighting struct {
	run  *run
	line int
	key  string // the same for the same rule
}

// sightings are the rules that iptables-save printed, in the order of the text.
func (s *scanner) sightings() []sighting {
	var all []sighting
	for _, r := range s.found {
		for i := range r.rules {
			if rule := &r.rules[i]; r.command != 0 && !rule.hidden {
				all = append(all, sighting{r, rule.line, r.chain + " " + rule.key()})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b sighting) int { return a.line - b.line })
	return all
}

// changed tells whether a command's rules differ from those shown before it since a line: it shows a new one, and does not show one that it
// would have shown.
func changed(seen []sighting, by *run, since int, shows func(line int) bool) bool {
	now, before := map[string]bool{}, map[string]bool{}
	earlier := func(o *sighting) bool {
		return o.run.command < by.command && o.line >= since && o.run.family == by.family &&
			(o.run.table == by.table || o.run.table == "" || by.table == "")
	}
	for i := range seen {
		switch o := &seen[i]; {
		case o.run.command == by.command:
			now[o.key] = true
		case earlier(o):
			before[o.key] = true
		}
	}
	fresh := false
	for key := range now {
		fresh = fresh || !before[key]
	}
	return fresh && slices.ContainsFunc(seen, func(o sighting) bool { return earlier(&o) && !now[o.key] && shows(o.line) })
}

// names finds one of the addresses among those that rules test or translate to.
func (s *scanner) names(about []netip.Addr, in func(*run) bool) (netip.Addr, bool) {
	for _, r := range s.found {
		if !in(r) {
			continue
		}
		for i := range r.rules {
			for _, a := range about {
				if names(&r.rules[i].rule, a) {
					return a, true
				}
			}
		}
	}
	return netip.Addr{}, false
}

// names tells whether the rule tests for just this address, or translates to it.
func names(r *iptables.Rule, a netip.Addr) bool {
	alone := netip.PrefixFrom(a, a.BitLen())
	if a.IsValid() && (r.Destination.Prefix == alone || r.Source.Prefix == alone) {
		return true
	}
	o, ok := r.Target.Option("to-destination")
	if !ok || len(o.Args) != 1 {
		return false
	}
	to, err := netip.ParseAddrPort(o.Args[0])
	return err == nil && to.Addr() == a || o.Args[0] == a.String()
}
