package snapshot

import (
	"maps"
	"reflect"
	"regexp"
	"slices"

	"packetwalk.dev/internal/model/netfilter"
)

// Changes lists what decides about packets and is not the same in two states of a host. Counters, connections, what the kernel learns by
// itself and sysctls, some of which are counters too, do not count.
func Changes(before, after *Host) []Part {
	var changed []Part
	if !slices.EqualFunc(before.Rules.Tables, after.Rules.Tables, sameTable) {
		changed = append(changed, Rules)
	}
	if !maps.EqualFunc(before.IPSets, after.IPSets, sameSet) {
		changed = append(changed, IPSets)
	}
	for _, c := range []struct {
		part          Part
		before, after any
	}{
		{Addresses, before.FIB.Addresses, after.FIB.Addresses},
		{Routes, before.FIB.Routes, after.FIB.Routes},
		{Policy, before.FIB.Rules, after.FIB.Rules},
	} {
		if !reflect.DeepEqual(c.before, c.after) {
			changed = append(changed, c.part)
		}
	}
	return changed
}

func sameTable(a, b *netfilter.Table) bool {
	return a.Family == b.Family && a.Name == b.Name && slices.EqualFunc(a.Chains, b.Chains, sameChain) &&
		maps.EqualFunc(a.Sets, b.Sets, sameSet)
}

func sameChain(a, b *netfilter.Chain) bool {
	return a.Name == b.Name && a.Policy == b.Policy && reflect.DeepEqual(a.Base, b.Base) &&
		slices.EqualFunc(a.Rules, b.Rules, func(a, b netfilter.Rule) bool { return uncounted(a.Text) == uncounted(b.Text) })
}

// counters are nft's in a rule's text, which has them as the rule was read.
var counters = regexp.MustCompile(`\bcounter packets [0-9]+ bytes [0-9]+`)

func uncounted(text string) string { return counters.ReplaceAllLiteralString(text, "counter") }

// sameSet compares elements by what the rule set says of them: a verdict's chain is another one in the other state, of the same name.
func sameSet(a, b *netfilter.Set) bool {
	return a.Kind == b.Kind && slices.EqualFunc(a.Elements, b.Elements, func(a, b netfilter.Element) bool {
		return slices.Equal(a.Key, b.Key) && a.NoMatch == b.NoMatch && a.Set == b.Set && a.Data.Words == b.Data.Words
	})
}
