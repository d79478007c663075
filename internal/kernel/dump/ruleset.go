package dump

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/syntax/nftables"
)

// manyChains is from where on it takes seconds to ask for all rules at once: for every 32 kB of its answer the kernel goes through all
// chains and rules again (net/netfilter/nf_tables_api.c, nf_tables_dump_rules).
var manyChains = 5000

// ruleset prints nft's rule set in JSON. Where that takes seconds, the rules of iptables' tables are left out, which iptables-save prints,
// asking for them chain by chain: what is missed of them are their handles. Where nft fails, the kernel itself lists what there is.
func (d *Dumper) ruleset(ctx context.Context, ns *netns.Namespace, row capture.Dump, m *modules) capture.Output {
	if missing, err := m.firstMissing("nf_tables"); missing != "" || err != nil {
		return d.command(ctx, ns, row, m)
	}
	if n, err := ruleset.CountChains(ctx, ns); err == nil && n > manyChains {
		if out, ok := d.withoutIPTables(ctx, ns); ok {
			return out
		}
	}
	out := d.command(ctx, ns, row, m)
	if out.Error == "" {
		return out
	}
	cause, _, _ := strings.Cut(out.Error, ":") // without what nft said
	if !strings.HasPrefix(cause, "nft ") {
		cause = "nft: " + cause
	}
	text, err := listByNetlink(ctx, ns, cause)
	if err != nil {
		out.Error += "; " + err.Error()
		return out
	}
	return capture.Output{Data: text}
}

// nftObject is one of nft's JSON (libnftables-json(5)): what there is of it, by its kind.
type nftObject map[string]json.RawMessage

type nftList struct {
	Objects []nftObject `json:"nftables"`
}

type nftTable struct {
	Family string `json:"family"`
	Name   string `json:"name"`
}

// withoutIPTables returns the rule set without the rules of iptables' tables; false where there are no such tables, or it cannot be had so.
func (d *Dumper) withoutIPTables(ctx context.Context, ns *netns.Namespace) (out capture.Output, ok bool) {
	var commands []string
	list := func(args ...string) (l nftList, ok bool) {
		for _, tool := range d.tools(append([]string{"nft", "-j", "-a", "list"}, args...)) {
			tool.In = ns.Do
			printed, started := d.runTool(ctx, tool)
			if started && printed.Error == "" && json.Unmarshal(printed.Data, &l) == nil {
				commands = append(commands, printed.Command)
				return l, true
			}
		}
		return l, false
	}
	chains, ok := list("chains") // by table; to list the tables, nft asks for all of their rules
	tables, of := byTable(chains)
	saved, err := iptablesTables(tables, chains)
	if !ok || err != nil || len(saved) == 0 {
		return out, false
	}
	var all nftList
	for _, t := range tables {
		if slices.Contains(saved, t) {
			all.Objects = slices.Concat(all.Objects, []nftObject{t.object()}, of[t])
			continue
		}
		if !ruleset.IsIdentifier(t.Name) || !ruleset.IsIdentifier(t.Family) {
			return out, false
		}
		whole, ok := list("table", t.Family, t.Name)
		if !ok {
			return out, false
		}
		all.Objects = append(all.Objects, slices.DeleteFunc(whole.Objects, func(o nftObject) bool { return o["metainfo"] != nil })...)
	}
	data, err := json.Marshal(all)
	return capture.Output{Command: strings.Join(commands, "; "), Data: data}, err == nil
}

func (t nftTable) object() nftObject {
	text, _ := json.Marshal(t) // two strings
	return nftObject{"table": text}
}

// byTable gives the tables that chains are in, in their order, and the chains of each.
func byTable(chains nftList) (tables []nftTable, of map[nftTable][]nftObject) {
	of = map[nftTable][]nftObject{}
	for _, o := range chains.Objects {
		var c struct{ Family, Table string }
		if json.Unmarshal(o["chain"], &c) != nil {
			continue // metainfo
		}
		t := nftTable{c.Family, c.Table}
		if of[t] == nil {
			tables = append(tables, t)
		}
		of[t] = append(of[t], o)
	}
	return tables, of
}

// iptablesTables returns those of the tables that iptables-nft and its kin have made, by their chains.
func iptablesTables(tables []nftTable, chains nftList) (made []nftTable, err error) {
	var all nftList
	for _, t := range tables {
		all.Objects = append(all.Objects, t.object())
	}
	all.Objects = append(all.Objects, chains.Objects...)
	text, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	known, err := nftables.Parse(text)
	if err != nil {
		return nil, err
	}
	for _, f := range known.Foreign() {
		made = append(made, nftTable{f.Family.String(), f.Name})
	}
	return made, nil
}
