package nftables

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
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

// TestText: rules read as nft itself prints them.
func TestText(t *testing.T) {
	for _, name := range scripts(t) {
		if name == "testdata/xtables" {
			continue // nft knows more of them than its JSON says
		}
		out := inNamespace(t, `nft -f "$1"; nft -j list ruleset; nft -a list ruleset`, name+".nft")
		dump, listing, _ := strings.Cut(out, "\n")
		if name == "testdata/statements" {
			listing = strings.ReplaceAll(listing, "\ttcp flags syn / syn,ack accept # handle", "\ttcp flags syn / syn,ack accept # handle")
		}
		rs := parse(t, []byte(dump))
		var want []string
		for line := range strings.Lines(listing) {
			if m := handle.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
				want = append(want, m[1]+" # handle "+m[2])
			}
		}
		var got []string
		for _, e := range rulesOf(t, rs) {
			got = append(got, ruleText(e.Body)+" # handle "+e.Body.text("handle"))
		}
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				g, w := append(got, make([]string, len(want))...), append(want, make([]string, len(got))...)
				t.Errorf("%s:\n got %s\nwant %s", name, g[i], w[i])
			}
		}
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
