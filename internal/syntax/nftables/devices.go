package nftables

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

// ChainName names a chain of a rule set.
type ChainName struct {
	Family       netfilter.Family
	Table, Chain string
}

var (
	tableLine = regexp.MustCompile(`^table (\S+) (\S+) \{`)
	chainLine = regexp.MustCompile(`^\tchain (\S+) \{`)
	hookLine  = regexp.MustCompile(`^\t\ttype filter hook (?:in|e)gress devices? (?:= \{ )?(.+?)(?: \})? priority `)
)

// Devices reads the interfaces at which chains hang out of the output of "nft list chains", which tells them where its JSON does not.
func Devices(text []byte) map[ChainName][]string {
	found := map[ChainName][]string{}
	var at ChainName
	for line := range strings.Lines(string(text)) {
		if m := tableLine.FindStringSubmatch(line); m != nil {
			at = ChainName{Family: families[m[1]], Table: m[2]}
		} else if m := chainLine.FindStringSubmatch(line); m != nil {
			at.Chain = m[1]
		} else if m := hookLine.FindStringSubmatch(line); m != nil {
			for name := range strings.SplitSeq(m[1], ", ") {
				found[at] = append(found[at], strings.Trim(name, `"`))
			}
		}
	}
	return found
}

// AppendDevices appends what Devices reads, in the order of the names.
func AppendDevices(b []byte, chains map[ChainName][]string) []byte {
	names := slices.SortedFunc(maps.Keys(chains), func(a, b ChainName) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), strings.Compare(a.Table, b.Table), strings.Compare(a.Chain, b.Chain))
	})
	for _, n := range names {
		b = fmt.Appendf(b, "table %s %s {\n\tchain %s {\n\t\ttype filter hook ingress devices = { \"%s\" } priority 0; policy accept;\n\t}\n}\n",
			n.Family, n.Table, n.Chain,
			strings.Join(chains[n], `", "`))
	}
	return b
}
