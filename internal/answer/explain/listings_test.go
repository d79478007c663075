package explain

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/testing/goldentest"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/writers"
)

// TestListings attributes every rule of whole listings as people paste them from AKS's nodes: each has a writer and a reason. Rules that are
// found on nodes, and of which no source tells the writer, say so.
func TestListings(t *testing.T) {
	kerneltest.NeedRoot(t)
	load := func(text []byte) ([]byte, error) { return ruleset.LoadNFT(t.Context(), text) }
	none := ownersOf(snapshot.Objects{})
	book := writers.Book(&snapshot.Objects{})
	goldentest.Run(t, "testdata/listings/*.txtar", 1, func(t *testing.T, in []txtar.File) []txtar.File {
		source, err := excerpt.Read(book, load, "n", in[0].Data)
		if err != nil {
			t.Fatal(err)
		}
		host, err := source.Host("node/n")
		if err != nil {
			t.Fatal(err)
		}
		for part, why := range host.Unread {
			t.Errorf("%s: %s", part, why)
		}
		return []txtar.File{{Name: "writers", Data: []byte(attributed(t, none, host.Rules))}}
	})
}

// attributed lists a rule set's rules by their chains, each with its writer and its reason.
func attributed(t *testing.T, o *Owners, rules *netfilter.Ruleset) string {
	var out strings.Builder
	for _, table := range rules.Tables {
		chains := map[string]*netfilter.Chain{}
		for _, c := range table.Chains {
			chains[c.Name] = c
		}
		why := map[*netfilter.Rule]attribution.Reason{}
		visitAll(o, chains, func(v *netfilter.Visit, r attribution.Reason) {
			if v.Rule != nil && (why[v.Rule].Line == nil || r.Line != nil) {
				why[v.Rule] = r
			}
		})
		for _, c := range table.Chains {
			if len(c.Rules) > 0 {
				fmt.Fprintf(&out, "%s %s %s\n", table.Family, table.Name, c.Name)
			}
			for i := range c.Rules {
				if strings.HasPrefix(c.Rules[i].Text, "policy ") {
					continue // of a chain of ebtables, which needs no reason
				}
				r := why[&c.Rules[i]]
				if r.Line == nil {
					t.Errorf("no writer is known for %s %s %s", table.Name, c.Name, c.Rules[i].Text)
				}
				fmt.Fprintf(&out, "  %s: %s\n", r.Writer, r.For)
			}
		}
	}
	return out.String()
}
