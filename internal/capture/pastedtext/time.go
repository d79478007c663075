package pastedtext

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// mostTimes is how many times are told apart. What is shown earlier than those counts as one time.
const mostTimes = 50

// A text may show the same chains at several times: an article changes a service and lists its rules again. With whole chains that is seen
// at once. Of greps it is seen where one shows rules that a wider one before it did not: "iptables-save | grep A | grep B" shows nothing
// that "iptables-save | grep A" does not show at the same time.

// chooseTime keeps the rules of one time: the last at which one of the addresses is in the rules, else the last.
func (s *scanner) chooseTime(about []netip.Addr) {
	times := s.times()
	if len(times) < 2 {
		return
	}
	all := len(times)
	if n := all - mostTimes; n > 0 {
		times = append(times[:1], times[1+n:]...)
	}
	within := func(r *run, i int) bool { return r.line >= times[i] && (i+1 == len(times) || r.line < times[i+1]) }
	choice, why := len(times)-1, "the last"
	defer func() {
		if choice+1 < len(times) {
			s.until = times[choice+1]
		}
	}()
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
	if choice == 0 && all > mostTimes {
		for _, r := range s.found {
			r.whole = false // rules of several times
		}
	}
	s.note(conflict, times[choice], "the rules are shown at %d times and differ, from lines %s; using those from line %s, %s",
		all, strings.Join(first, ", "), first[choice], why)
}

// times returns the lines at which what the text shows begins, and begins to be different.
func (s *scanner) times() []int {
	times := []int{0}
	shown := map[string]map[string]bool{} // rules by the pipeline that showed them
	for i := 0; i < len(s.found); {
		first, rules := s.found[i], map[string]bool{}
		for ; i < len(s.found) && s.found[i].command == first.command; i++ {
			for j := range s.found[i].rules {
				rules[s.found[i].chain+" "+s.found[i].rules[j].key] = true
			}
		}
		if first.pipeline == "" || len(rules) == 0 {
			continue
		}
		if before := shown[first.pipeline]; before != nil && !maps.Equal(before, rules) || first.narrows(rules, shown) {
			times, shown = append(times, first.command), map[string]map[string]bool{}
		}
		shown[first.pipeline] = rules
	}
	return times
}

// narrows reports whether a run's pipeline goes on where another one ended that did not show all of its rules.
func (r *run) narrows(rules map[string]bool, shown map[string]map[string]bool) bool {
	for at := strings.LastIndex(r.pipeline, " |"); at >= 0; at = strings.LastIndex(r.pipeline[:at], " |") {
		before := shown[r.pipeline[:at]]
		for key := range rules {
			if before != nil && !before[key] {
				return true
			}
		}
	}
	return false
}

// names finds one of the addresses among those that rules test or translate to.
func (s *scanner) names(about []netip.Addr, in func(*run) bool) (netip.Addr, bool) {
	words := map[string]bool{}
	for _, r := range s.found {
		if !in(r) {
			continue
		}
		for i := range r.rules {
			for _, word := range strings.Fields(r.rules[i].key) {
				if to, err := netip.ParseAddrPort(word); err == nil {
					word = to.Addr().String()
				}
				words[word] = true
			}
		}
	}
	for _, a := range about {
		if a.IsValid() && (words[a.String()] || words[netip.PrefixFrom(a, a.BitLen()).String()]) {
			return a, true
		}
	}
	return netip.Addr{}, false
}
