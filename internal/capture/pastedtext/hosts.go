package pastedtext

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// SeveralHostsError says that a text shows several hosts, and no prompt tells which one is meant. They are not merged.
type SeveralHostsError struct{ Names []string }

func (e *SeveralHostsError) Error() string {
	if len(e.Names) == 1 {
		return fmt.Sprintf("the text shows host %s only; leave out --at, or name it with --at %q", e.Names[0], e.Names[0])
	}
	return fmt.Sprintf("the text shows several hosts: %s; name one with --at %q", Some(e.Names), e.Names[0])
}

// hostHeading is a heading that names a host: "Host A:", "On node-2:".
var hostHeading = regexp.MustCompile(`(?i)^[#*\s]*(?:(?:on|from|output of)\s+)?(?:the\s+)?((?:host|node|server|machine|vm|router|gateway|master|worker|peer|box)\b[\s_-]*[\w.-]*)\**:\**$`)

// headHost takes a heading for the host of what follows, up to the next heading or prompt.
func (s *scanner) headHost(line string) {
	if m := hostHeading.FindStringSubmatch(line); m != nil {
		s.from = origin{machine: strings.TrimSpace(m[1]), headed: true}
	}
}

// chooseHost keeps what is of one host where headings name several, or where the text shows the routes or addresses of two without a
// command: then they are told apart by their lines. machine is the one that is wanted.
func (s *scanner) chooseHost(machine string) error {
	if err := s.splitHosts(machine); err != nil {
		return err
	}
	var names []string
	chosen := ""
	note := func(from origin) {
		if from.headed && !slices.Contains(names, from.machine) {
			names = append(names, from.machine)
			if strings.EqualFold(from.machine, machine) {
				chosen = from.machine
			}
		}
	}
	for _, r := range s.found {
		note(r.from)
	}
	for i := range s.blocks {
		note(s.blocks[i].from)
	}
	switch {
	case len(names) < 2:
		return nil
	case chosen == "":
		return &SeveralHostsError{names}
	}
	for _, r := range s.found {
		r.from.headed = r.from.headed && r.from.machine != chosen
	}
	s.blocks = slices.DeleteFunc(s.blocks, func(b Block) bool {
		gone := b.from.headed && b.from.machine != chosen
		for _, n := range b.numbers {
			if gone {
				s.NoEffect(n, elsewhere)
			}
		}
		return gone
	})
	s.found = slices.DeleteFunc(s.found, func(r *run) bool {
		for i := 0; r.from.headed && i < len(r.rules); i++ {
			s.NoEffect(r.rules[i].line, elsewhere)
		}
		return r.from.headed
	})
	return nil
}

// elsewhere is why lines have no effect that are of another host than the one that is read.
const elsewhere = "of another machine or namespace"

// splitHosts names the hosts by lines where two blocks contradict each other that no command printed.
func (s *scanner) splitHosts(machine string) error {
	first := map[BlockKind]*Block{}
	var begins []int
	for i := range s.blocks {
		b := &s.blocks[i]
		if b.prompt > 0 || b.from.headed || b.Kind != IPRoute && b.Kind != IPAddress || b.Filtered {
			continue
		}
		switch before := first[b.Kind]; {
		case before == nil:
			first[b.Kind] = b
		case b.contradicts(before):
			if len(begins) == 0 {
				begins = append(begins, before.Line)
			}
			begins, first[b.Kind] = append(begins, b.Line), b
		}
	}
	if len(begins) == 0 {
		return nil
	}
	slices.Sort(begins)
	name := func(line int) origin {
		at := begins[0]
		for _, begin := range begins {
			if begin <= line {
				at = begin
			}
		}
		return origin{machine: fmt.Sprintf("line-%d", at), headed: true}
	}
	for i := range s.blocks {
		s.blocks[i].from = name(s.blocks[i].Line)
	}
	for _, r := range s.found {
		r.from = name(r.line)
	}
	return nil
}

// contradicts reports whether two blocks cannot be of one host at one time: their default routes, or the addresses of a link, differ.
func (b *Block) contradicts(o *Block) bool {
	a, c := b.facts(), o.facts()
	for key, values := range a {
		if other := c[key]; other != nil && !slices.ContainsFunc(values, func(v string) bool { return slices.Contains(other, v) }) {
			return true
		}
	}
	return false
}

// facts returns the default routes of a block, and the IPv4 addresses of its links but loopback's.
func (b *Block) facts() map[string][]string {
	all := map[string][]string{}
	link := ""
	for _, line := range b.lines() {
		switch words := strings.Fields(line); {
		case len(words) > 1 && words[0] == "default" && !slices.Contains(words, "table"):
			all["default"] = append(all["default"], strings.Join(words[1:min(len(words), 5)], " "))
		case len(words) > 1 && strings.HasSuffix(words[1], ":"):
			link = words[1]
		case len(words) > 1 && words[0] == "inet" && link != "lo:":
			all[link] = append(all[link], words[1])
		}
	}
	return all
}
