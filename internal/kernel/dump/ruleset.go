package dump

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/syntax/nftables"
)

// manyChains is from where on it takes seconds to ask for all rules at once: for every 32 kB of its answer the kernel goes through all
// chains and rules again (net/netfilter/nf_tables_api.c, nf_tables_dump_rules).
var manyChains = 5000

// ruleset prints nft's rule set in JSON. Where that takes seconds, the rules of iptables' tables are left out, which iptables-save prints,
// asking for them chain by chain: what is missed of them are their handles.
func (d *Dumper) ruleset(ctx context.Context, ns *kernel.Namespace, row capture.Dump) capture.Output {
	if n, err := ns.CountChains(); err == nil && n > manyChains {
		if out, ok := d.withoutIPTables(ctx, ns); ok {
			return out
		}
	}
	return d.command(ctx, ns, row)
}

// nftList is nft's JSON (libnftables-json(5)): an object of each kind, by the kind.
type nftList struct {
	Objects []map[string]json.RawMessage `json:"nftables"`
}

// withoutIPTables is the rule set without the rules of iptables' tables; false where there are no such tables, or it cannot be had so.
func (d *Dumper) withoutIPTables(ctx context.Context, ns *kernel.Namespace) (out capture.Output, ok bool) {
	var commands []string
	list := func(args ...string) (l nftList, ok bool) {
		tool, there := d.tool(append([]string{"nft", "-j", "-a", "list"}, args...))
		if !there {
			return l, false
		}
		tool.In = ns.Do
		printed := runTool(ctx, tool)
		commands = append(commands, printed.Command)
		return l, printed.Error == "" && json.Unmarshal(printed.Data, &l) == nil
	}
	tables, ok := list("tables")
	chains, ok2 := list("chains")
	text, err := json.Marshal(nftList{slices.Concat(tables.Objects, chains.Objects)})
	if !ok || !ok2 || err != nil {
		return out, false
	}
	known, err := nftables.Parse(text)
	if err != nil {
		return out, false
	}
	saved := known.Foreign()
	if len(saved) == 0 {
		return out, false
	}
	var all nftList
	for _, o := range tables.Objects {
		var t struct{ Family, Name, Table string }
		if o["table"] == nil {
			all.Objects = append(all.Objects, o) // metainfo
			continue
		}
		if json.Unmarshal(o["table"], &t) != nil {
			return out, false
		}
		if slices.ContainsFunc(saved, func(f *netfilter.Table) bool { return f.Family.String() == t.Family && f.Name == t.Name }) {
			all.Objects = append(all.Objects, o)
			continue
		}
		whole, ok := list("table", t.Family, t.Name)
		if !ok {
			return out, false
		}
		all.Objects = append(all.Objects, slices.DeleteFunc(whole.Objects, func(o map[string]json.RawMessage) bool { return o["metainfo"] != nil })...)
	}
	for _, o := range chains.Objects {
		var c struct{ Family, Table string }
		if json.Unmarshal(o["chain"], &c) == nil &&
			slices.ContainsFunc(saved, func(f *netfilter.Table) bool { return f.Family.String() == c.Family && f.Name == c.Table }) {
			all.Objects = append(all.Objects, o)
		}
	}
	data, err := json.Marshal(all)
	if err != nil {
		return out, false
	}
	return capture.Output{Command: strings.Join(commands, "; "), Data: data}, true
}
