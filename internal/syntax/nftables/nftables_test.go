package nftables

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/testing/kerneltest"
)

// inNamespace runs a shell script in a network namespace that ends with it.
func inNamespace(t *testing.T, script string, args ...string) string {
	t.Helper()
	kerneltest.NeedRoot(t)
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--net", "sh", "-ec", script, "sh"}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, cmd.Stderr)
	}
	return string(out)
}

func scripts(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("testdata/*.json")
	if err != nil || len(names) == 0 {
		t.Fatalf("no test data: %v", err)
	}
	for i := range names {
		names[i] = strings.TrimSuffix(names[i], ".json")
	}
	return names
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parse(t *testing.T, data []byte) *Ruleset {
	t.Helper()
	rs, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func lower(t *testing.T, rs *Ruleset) []*netfilter.Table {
	t.Helper()
	tables, err := Lower(rs)
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// TestPrint: what nft wrote is printed again, byte by byte.
func TestPrint(t *testing.T) {
	for _, name := range scripts(t) {
		data := read(t, name+".json")
		n, err := parseNode(data)
		if err != nil {
			t.Fatal(err)
		}
		if got := n.String(); strings.TrimSpace(got) != strings.TrimSpace(string(data)) {
			t.Errorf("%s: printed differently:\n%s", name, got)
		}
	}
}

func rulesOf(t *testing.T, rs *Ruleset) []Entry {
	t.Helper()
	all, err := entries(rs.text, rs.rules)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var handle = regexp.MustCompile(`^\t\t(.*\S) # handle (\d+)$`)

// listedRules returns the rules in a listing of nft's, with their handles.
func listedRules(listing string) (rules []string) {
	for line := range strings.Lines(listing) {
		if m := handle.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			rules = append(rules, m[1]+" # handle "+m[2])
		}
	}
	return rules
}

// TestText: rules read as nft itself prints them. Versions of nft print some in different forms: then nft, given our form, prints its own.
func TestText(t *testing.T) {
	for _, name := range scripts(t) {
		if name == "testdata/xtables" {
			continue // nft knows more of them than its JSON says
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			out := inNamespace(t, `nft -f "$1"; nft -j list ruleset; nft -a list ruleset`, name+".nft")
			dump, listing, _ := strings.Cut(out, "\n")
			want := listedRules(listing)
			var got []string
			for _, e := range rulesOf(t, parse(t, []byte(dump))) {
				got = append(got, ruleText(e.Body)+" # handle "+e.Body.text("handle"))
			}
			if len(got) != len(want) {
				t.Fatalf("%d rules, nft lists %d", len(got), len(want))
			}
			if slices.Equal(got, want) {
				return
			}
			ours := listing
			for i := range got {
				ours = strings.Replace(ours, "\t\t"+want[i]+"\n", "\t\t"+got[i]+"\n", 1)
			}
			path := filepath.Join(t.TempDir(), "ours.nft")
			if err := os.WriteFile(path, []byte(ours), 0o600); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, listedRules(inNamespace(t, `nft -f "$1"; nft -a list ruleset`, path))); diff != "" {
				t.Errorf("nft's rules, and what it makes of ours (-nft +ours):\n%s", diff)
			}
		})
	}
}

// meaning returns the meaning of tables, without the text of their rules.
func meaning(tables []*netfilter.Table) (lines []string) {
	for _, t := range tables {
		for _, name := range slices.Sorted(maps.Keys(t.Sets)) {
			s := t.Sets[name]
			lines = append(lines, fmt.Sprintf("%s %s set %s: %v", t.Family, t.Name, name, s.Fields))
			first := len(lines)
			for _, e := range s.Elements {
				line := fmt.Sprintf("  %v unsure %t: %v", e.Key, e.Unsure, e.Data.Values)
				if v := e.Data.Verdict; v != nil {
					line += " " + v.Kind.String() + v.Detail
					if v.Chain != nil {
						line += v.Chain.Name
					}
				}
				lines = append(lines, line)
			}
			slices.Sort(lines[first:]) // the kernel has them in another order each time
		}
		for _, c := range t.Chains {
			base := ""
			if c.Base != nil {
				base = fmt.Sprint(c.Base.Type, c.Base.Hook, c.Base.Priority)
			}
			lines = append(lines, fmt.Sprintf("%s %s chain %s: %s %s", t.Family, t.Name, c.Name, base, c.Policy))
			for i := range c.Rules {
				words := []string{}
				for _, s := range c.Rules[i].Statements {
					if c, ok := s.(*netfilter.Compare); ok { // by numbers: versions know different names for them
						words = append(words, fmt.Sprint(c.Left, c.Op, c.Right))
					} else {
						words = append(words, s.String())
					}
				}
				lines = append(lines, fmt.Sprintf("  %d: %q", i+1, words))
			}
		}
	}
	return lines
}

// TestVersions: what newer versions of nft print in other words means the same. The test data is of 1.0.6.
func TestVersions(t *testing.T) {
	for _, version := range []string{"nft-1.1.3", "nft-1.1.7", "nft in PATH"} {
		t.Run(version, func(t *testing.T) {
			names, err := filepath.Glob("testdata/" + version + "/*.json")
			if version == "nft in PATH" {
				names = scripts(t)
				names = slices.DeleteFunc(names, func(name string) bool { return name == "testdata/xtables" })
			}
			if err != nil || len(names) == 0 {
				t.Fatal("no test data", err)
			}
			for _, name := range names {
				base := strings.TrimSuffix(filepath.Base(name), ".json")
				var dump []byte
				if version == "nft in PATH" {
					dump = []byte(inNamespace(t, `nft -f "$1"; nft -j list ruleset`, "testdata/"+base+".nft"))
				} else {
					dump = read(t, name)
				}
				want := lower(t, parse(t, read(t, "testdata/"+base+".json")))
				if diff := cmp.Diff(meaning(want), meaning(lower(t, parse(t, dump)))); diff != "" {
					t.Errorf("%s (-1.0.6 +this):\n%s", base, diff)
				}
			}
		})
	}
}

// TestKnown: what this project, kube-proxy, Docker and Calico write is understood.
func TestKnown(t *testing.T) {
	for _, name := range []string{"fabric-world-a", "fabric-peered", "kube-proxy", "others"} {
		for _, table := range lower(t, parse(t, read(t, "testdata/"+name+".json"))) {
			for _, c := range table.Chains {
				for i := range c.Rules {
					for _, s := range c.Rules[i].Statements {
						if strings.Contains(s.String(), "not understood") {
							t.Errorf("%s: %s: %s: %s", name, c.Ref(&c.Rules[i]), c.Rules[i].Text, s)
						}
					}
				}
			}
			for _, s := range table.Sets {
				for i := range s.Elements {
					if e := &s.Elements[i]; e.Unsure || e.Data.Words != "" && e.Data.Verdict == nil && e.Data.Values == nil {
						t.Errorf("%s: set %s: element %d is not understood: %v", name, s.Name, i, e)
					}
				}
			}
		}
	}
}

// TestTableFlags: the kernel calls no chain of a dormant table. One with unknown flags may be dormant: nft 1.0.6 prints garbage.
func TestTableFlags(t *testing.T) {
	p := &packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP}}
	for _, c := range []struct {
		flags, policy string
		kinds         string // of verdicts, with the unknown taken to hold, and not to
	}{
		{`"owner"`, "accept", "drop"}, {`["owner", "persist"]`, "accept", "drop"}, {`"dormant"`, "drop", ""}, {`["dormant", "owner"]`, "drop", ""},
		{`"Lester Gooch #5"`, "accept", "drop accept"}, {`"t3"`, "drop", "drop unknown"},
	} {
		t.Run(c.flags, func(t *testing.T) {
			text := `{"nftables": [{"table": {"family": "ip", "name": "a", "handle": 1, "flags": ` + c.flags + `}}, ` +
				`{"chain": {"family": "ip", "table": "a", "name": "c", "type": "filter", "hook": "input", "prio": 0, "policy": "` + c.policy + `"}}, ` +
				`{"rule": {"family": "ip", "table": "a", "chain": "c", "handle": 2, "expr": [{"drop": null}]}}]}`
			rs := &netfilter.Ruleset{Tables: lower(t, parse(t, []byte(text)))}
			rs.Index()
			var kinds []string
			for _, chain := range rs.Hook(netfilter.IPv4, netfilter.Input) {
				for answer := range 2 {
					s := &script{answers: []int{answer}}
					v, err := chain.Run(&netfilter.Context{Packet: p, Family: netfilter.IPv4, Hook: netfilter.Input, Chooser: s})
					if err != nil {
						t.Fatal(err)
					}
					if kinds = append(kinds, v.Kind.String()); len(s.asked) == 0 {
						break
					}
				}
			}
			if got := strings.Join(kinds, " "); got != c.kinds {
				t.Errorf("%s, want %s", got, c.kinds)
			}
		})
	}
}

// TestJoinDormant: a chain of a dormant table of iptables-nft stays uncalled with the rules of iptables-save.
func TestJoinDormant(t *testing.T) {
	rs := parse(t, []byte(`{"nftables": [{"table": {"family": "ip", "name": "filter", "handle": 1, "flags": "dormant"}}, `+
		`{"chain": {"family": "ip", "table": "filter", "name": "INPUT", "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}}]}`))
	saved := &netfilter.Table{Family: netfilter.IPv4, Name: "filter", Dialect: netfilter.IPTablesNFT}
	saved.Chains = []*netfilter.Chain{{Table: saved, Name: "INPUT", Policy: netfilter.Drop, Base: &netfilter.Base{Type: "filter", Hook: netfilter.Input}}}
	joined, _ := rs.Join(lower(t, rs), []*netfilter.Table{saved})
	all := &netfilter.Ruleset{Tables: joined}
	all.Index()
	if called := all.Hook(netfilter.IPv4, netfilter.Input); len(joined) != 1 || len(called) != 0 {
		t.Errorf("%d tables, of which chains are called: %v", len(joined), called)
	}
}
