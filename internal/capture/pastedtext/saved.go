package pastedtext

import (
	"slices"

	"packetwalk.dev/internal/syntax/iptables"
)

// SavedTables are the tables that a text shows whole, from *table to COMMIT.
type SavedTables struct {
	names map[string]bool
	// selected says that they are not what an iptables-save prints without options: it was asked for tables, or a file for iptables-restore
	// is shown, which leaves the other chains and tables as they are.
	selected bool
}

// all reports whether they are all tables that there are: nat and filter, which every machine of interest has, and so
// those that are missing
// do not exist. Fewer may be what was copied.
func (s *SavedTables) all() bool {
	return !s.selected && s.names[iptables.NAT] && s.names[iptables.Filter]
}

// check drops the tables without all their built-in chains, which iptables-save always prints; that of nf_tables only those that were ever
// used.
func (s *SavedTables) check(tables []iptables.Table, byNFT bool) {
	for i := range tables {
		t := &tables[i]
		lacks := slices.ContainsFunc(iptables.BuiltIn(t.Name), func(chain string) bool {
			return t.Chain(chain) == nil && (t.Name != iptables.NAT || chain != "INPUT") // which nat has since Linux 2.6.36
		})
		if s.names[t.Name] && lacks && !byNFT {
			s.selected = true
			delete(s.names, t.Name)
		}
	}
}

// WithUnshown returns the tables with the built-in chains that the text does not show: they may have rules. Where there are tables beside, each
// built-in chain may have others' rules around its own.
func WithUnshown(tables []iptables.Table, whole SavedTables, beside bool) []iptables.Table {
	tables = slices.Clone(tables)
	for _, name := range []string{iptables.Raw, iptables.Mangle, iptables.NAT, iptables.Filter} {
		if !beside && (whole.names[name] || whole.all()) {
			continue
		}
		i := slices.IndexFunc(tables, func(t iptables.Table) bool { return t.Name == name })
		if i < 0 {
			i, tables = len(tables), append(tables, iptables.Table{Name: name})
		}
		t := &tables[i]
		t.Chains = slices.Clone(t.Chains)
		for _, chain := range iptables.BuiltIn(name) {
			if c := t.Chain(chain); c == nil {
				t.Chains = append(t.Chains, iptables.Chain{Name: chain, Policy: "ACCEPT", Partial: true})
			} else if beside {
				c.Partial = true
			}
		}
	}
	return tables
}
