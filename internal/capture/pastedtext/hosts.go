package pastedtext

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// SeveralHostsError says that a text shows several hosts, and no prompt tells which one is meant. They are not merged.
type SeveralHostsError struct{ Names []string }

func (e *SeveralHostsError) Error() string {
	return fmt.Sprintf("the text shows several hosts: %s; name one with --at %q", Some(e.Names), e.Names[0])
}

// hostHeading is a heading that names a host: "Host A:", "On node-2:".
var hostHeading = regexp.MustCompile(`(?i)^[#*\s]*(?:(?:on|from|output of)\s+)?(?:the\s+)?((?:host|node|server|machine|vm|router|gateway|master|worker|peer|box)\b[\s_-]*[\w.-]*)\**:\**$`)

var (
	// nameHeading is a heading with one word: "## worker-1", "== node1", "10.1.0.4:".
	nameHeading = regexp.MustCompile(`^(?:[#=*>\s-]*\s|[#=*]+)?\**((?:[A-Za-z][\w.-]*|(?:[0-9]{1,3}\.){3}[0-9]{1,3}))\**(?::|\s*[:=*#-]*)$`)
	// ansibleHeading is how Ansible begins what one host printed.
	ansibleHeading = regexp.MustCompile(`^([\w.-]+) \| (?:CHANGED|SUCCESS|FAILED)!? (?:\| rc=[0-9]+ )?(?:>>|=>)`)
	// counted is the part of a name in which one of several hosts differs from the others.
	counted = regexp.MustCompile(`[0-9]+|[-_.][a-z]$`)
	// prefixHost is the host, or the pod, in what a log or a tool for several hosts puts in front of lines.
	prefixHost = regexp.MustCompile(`^(?:\[(?:pod|node|host)/([\w.-]+)|(?:[A-Z][a-z]{2}\s+[0-9]+ [0-9:]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}T\S+) ([\w.-]+) \S+:\s*$|([A-Za-z][\w.]*[0-9-][\w.-]*)\s*[|:]\s+$)`)
)

// nameLines returns the hosts that prefixes and headings name, by the line at which what is of each begins, if there are several. Headings
// with one word are hosts if they differ in a number or a letter, and state stands below each.
func nameLines(lines []textLine) map[int]string {
	all, alike := map[int]string{}, map[string]map[string]int{}
	host := ""
	for i, line := range lines {
		if line.host != "" && line.host != host {
			host = line.host
			all[i+1] = host
		}
		if m := ansibleHeading.FindStringSubmatch(line.text); m != nil {
			all[i+1] = m[1]
		}
	}
	for i := 0; i+1 < len(lines); i++ {
		name, below := headsHost(lines[i].text), i+1
		for ; below < min(i+3, len(lines)-1) && lines[below].text == ""; below++ { // a blank, or a fence
		}
		if name == "" || !beginsState(lines[below].text) {
			continue
		}
		shape := counted.ReplaceAllString(name, "0")
		if alike[shape] == nil {
			alike[shape] = map[string]int{}
		}
		if alike[shape][name] == 0 {
			alike[shape][name] = i + 1
		}
		if len(alike[shape]) > 1 {
			for other, at := range alike[shape] {
				all[at] = other
			}
			all[i+1] = name
		}
	}
	if names := slices.Compact(slices.Sorted(maps.Values(all))); len(names) < 2 {
		return nil
	}
	return all
}

// headsHost returns the host that a heading may name: a word with a number that is no interface, program or chain.
func headsHost(line string) string {
	m := nameHeading.FindStringSubmatch(line)
	if m == nil || !counted.MatchString(m[1]) || linkToken.MatchString(m[1]) || isProgram(m[1]) {
		return ""
	}
	if m[1] == strings.ToUpper(m[1]) && strings.Trim(m[1], "0123456789.") != "" {
		return ""
	}
	return m[1]
}

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
	first := map[string]int{}
	for line, from := range s.origins {
		if !from.headed {
			continue
		}
		if first[from.machine] == 0 {
			names = append(names, from.machine)
		}
		if at := first[from.machine]; at == 0 || line < at {
			first[from.machine] = line
		}
		if strings.EqualFold(from.machine, machine) {
			chosen = from.machine
		}
	}
	slices.SortFunc(names, func(a, b string) int { return first[a] - first[b] })
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
