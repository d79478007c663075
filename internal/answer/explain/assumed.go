package explain

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/walk"
)

// assumed says what was assumed, once for all machines of which the same was. Of what reading a text had to assume, it says what mattered
// to this walk.
func (p *page) assumed(r *walk.Result) {
	read, rest := p.relevant(r)
	all := slices.Concat(r.Assumed, read)
	if len(all)+rest == 0 {
		return
	}
	hosts := map[string][]string{}
	var what []string
	one := oneHost(r)
	for _, a := range all {
		if hosts[a.What] == nil {
			what = append(what, a.What)
		}
		hosts[a.What] = append(hosts[a.What], hostName(a.Host))
	}
	if len(what) > 0 {
		fmt.Fprintln(p, p.paint(yellow, "assumed:"))
	}
	for _, w := range what {
		if !one {
			w = strings.Join(unique(hosts[w]), ", ") + ": " + w
		}
		p.wrapped("  ", plain, w)
	}
	if rest > 0 {
		fmt.Fprintf(p, "  (%d more that this packet did not meet; -o json lists them)\n", rest)
	}
}

// oneHost reports whether the walk never left its first machine: then it goes without saying which one is meant.
func oneHost(r *walk.Result) bool {
	for s := range r.Steps() {
		if s.Host != r.Request.Host {
			return false
		}
	}
	return true
}

// chainWord is what may be the name of a user's chain.
var chainWord = regexp.MustCompile(`\b[A-Za-z]\w*(?:-\w+)+\b`)

// relevant takes what is about no chain, or about one that the walk met; it counts the rest.
func (p *page) relevant(r *walk.Result) (kept []walk.Assumption, rest int) {
	met := map[string]bool{}
	for s := range r.Steps() {
		if v := s.Visit; v != nil {
			met[v.Chain.Name] = true
		}
	}
	for _, a := range p.o.Read {
		words := slices.DeleteFunc(chainWord.FindAllString(a.What, -1), func(w string) bool {
			return w != strings.ToUpper(w) && p.o.Owners.signatures().Chain(attribution.IP, "", w) == nil
		})
		if a.Component == "" && len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return met[w] }) {
			rest++
			continue
		}
		kept = append(kept, a)
	}
	return kept, rest
}
