// Package listing is for tests that compare rules with what an article lists: one table's listing as a table. Only tests import it.
package listing

import (
	"fmt"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// Parse reads what "iptables -t TABLE -L" printed, in any of its forms. hidden are the chains that are listed without -v, which hides
// interfaces. Lines that are no part of a listing are errors.
func Parse(table, text string) (t iptables.Table, hidden []string, err error) {
	t.Name = table
	var columns iptables.Columns
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if chain, ok := iptables.ParseChainHeader(line); ok {
			t.Chains = append(t.Chains, chain)
			continue
		}
		if c, ok := iptables.ParseColumns(line); ok {
			columns = c
			continue
		}
		l, ok := iptables.ParseListed(line, columns)
		if !ok || len(t.Chains) == 0 {
			return iptables.Table{}, nil, fmt.Errorf("line %d %q: no rule of a chain", number, line)
		}
		chain := &t.Chains[len(t.Chains)-1]
		chain.Rules = append(chain.Rules, l.Rule)
		if !l.Verbose && (len(hidden) == 0 || hidden[len(hidden)-1] != chain.Name) {
			hidden = append(hidden, chain.Name)
		}
	}
	return t, hidden, nil
}
