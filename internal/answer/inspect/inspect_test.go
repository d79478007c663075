package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/writers"
)

// sample opens a lab's capture.
func sample(t *testing.T) (snapshot.Source, *explain.Owners) {
	t.Helper()
	f, err := capture.Open("../../capture/testdata/world-a.pwcap.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	source := capture.NewSource(f.Origin())
	objects := source.Objects()
	return source, explain.NewOwners(objects, writers.Book(&objects))
}

// TestRules: each rule of a node is on one page of its chain, and those of kube-proxy's chains have their writer and reason.
func TestRules(t *testing.T) {
	source, owners := sample(t)
	for _, name := range source.Names() {
		host, err := source.Host(name)
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		for _, table := range host.Rules.Tables {
			for _, chain := range table.Chains {
				want += len(chain.Rules)
			}
		}
		got, signed, counted := 0, 0, 0
		for i, table := range Rules(host) {
			for j, chain := range table.Chains {
				for offset := 0; offset < chain.Rules; offset += MostRules {
					page, ok := ChainPage(host, owners, i, j, offset)
					if !ok || len(page.Rules) == 0 || page.Rules[0].Number != offset+1 {
						t.Fatalf("%s %s %s from %d on: %+v", name, table.Name, chain.Name, offset, page)
					}
					got += len(page.Rules)
					for _, r := range page.Rules {
						if r.Counted != nil {
							counted++
						}
						if strings.HasPrefix(chain.Name, "KUBE-SVC-") && r.Writer == "service proxy" && strings.Contains(r.For, "/") {
							signed++
						}
					}
				}
			}
		}
		if got != want {
			t.Errorf("%s: %d rules on pages, %d in the tables", name, got, want)
		}
		if strings.HasPrefix(name, "node/") && (signed == 0 || counted == 0) {
			t.Errorf("%s: %d rules of services are signed, %d rules have counters", name, signed, counted)
		}
	}
}

// TestNoChain: indexes that a client makes up lead to nothing.
func TestNoChain(t *testing.T) {
	source, owners := sample(t)
	host, err := source.Host(source.Names()[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range [][3]int{{-1, 0, 0}, {0, -1, 0}, {0, 0, -1}, {1 << 40, 0, 0}, {0, 1 << 40, 0}} {
		if page, ok := ChainPage(host, owners, at[0], at[1], at[2]); ok {
			t.Errorf("%v: %+v", at, page)
		}
	}
	if page, ok := ChainPage(nil, owners, 0, 0, 0); ok {
		t.Errorf("without a state: %+v", page)
	}
}

// TestCounters: counters of both dialects are read, and nft's are not in the text.
func TestCounters(t *testing.T) {
	for _, c := range []struct {
		rule netfilter.Rule
		text string
		want *Counters
	}{
		{netfilter.Rule{Text: "tcp dport 80 counter packets 12 bytes 720 drop"}, "tcp dport 80 counter drop", &Counters{12, 720}},
		{netfilter.Rule{Text: "counter packets 1 bytes 60"}, "counter", &Counters{1, 60}},
		{netfilter.Rule{Text: "tcp dport 80 drop"}, "tcp dport 80 drop", nil},
		{netfilter.Rule{Text: "-j DROP", Counters: &netfilter.Counters{Packets: 3, Bytes: 180}}, "-j DROP", &Counters{3, 180}},
		{netfilter.Rule{Text: "counter packets 99999999999999999999 bytes 1 drop"}, "counter packets 99999999999999999999 bytes 1 drop", nil},
	} {
		text, counted := cutCounters(&c.rule)
		if text != c.text || (counted == nil) != (c.want == nil) || counted != nil && *counted != *c.want {
			t.Errorf("%q: %q, %v; want %q, %v", c.rule.Text, text, counted, c.text, c.want)
		}
	}
}

// TestFind: a search finds chains by their names and rules by their texts, and says how many more there are.
func TestFind(t *testing.T) {
	table := &netfilter.Table{Name: "nat"}
	chain := &netfilter.Chain{Table: table, Name: "KUBE-SERVICES"}
	for i := range MostHits + 50 {
		chain.Rules = append(chain.Rules, netfilter.Rule{Number: i + 1, Text: fmt.Sprintf("-d 10.0.0.%d -j ACCEPT\x1b[31m", i)})
	}
	table.Chains = []*netfilter.Chain{chain}
	host := &snapshot.Host{FIB: &fib.State{}, Rules: &netfilter.Ruleset{Tables: []*netfilter.Table{table}}}
	if hits, more := Find(host, "accept"); len(hits) != MostHits || more != 50 || strings.ContainsRune(hits[0].Text, '\x1b') {
		t.Errorf("%d hits and %d more, the first %+v", len(hits), more, hits[0])
	}
	if hits, _ := Find(host, "kube-services"); len(hits) != 1 || hits[0].Number != 0 {
		t.Errorf("the chain: %+v", hits)
	}
	if hits, more := Find(host, ""); len(hits)+more != 0 {
		t.Errorf("nothing searched: %+v", hits)
	}
}

// TestMachine: a node has its interfaces, routes, neighbours, connections and listening sockets, and what was not read is said.
func TestMachine(t *testing.T) {
	source, owners := sample(t)
	for _, name := range source.Names() {
		if !strings.HasPrefix(name, "node/") {
			continue
		}
		host, err := source.Host(name)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range Machine(host, owners) {
			names = append(names, s.Name)
			for _, row := range s.Rows {
				if len(row) != len(s.Columns) {
					t.Errorf("%s: %s has a row of %d cells: %q", name, s.Name, len(row), row)
				}
			}
		}
		for _, want := range []string{"interfaces", "routes", "neighbours", "connections", "listening", "rules"} {
			if !slices.Contains(names, want) {
				t.Errorf("%s has %q, not %s", name, names, want)
			}
		}
	}
	unread := &snapshot.Host{FIB: &fib.State{}, Unread: map[snapshot.Part]string{snapshot.Routes: "ip route: killed"}}
	sections := Machine(unread, owners)
	if len(sections) != 1 || sections[0].Unknown != "routes: ip route: killed" {
		t.Errorf("of a host whose routes were not read: %+v", sections)
	}
}

// TestObjects: boxes of pods, nodes and Services have the command that prints their objects, and names that no shell may get have none.
func TestObjects(t *testing.T) {
	source, _ := sample(t)
	objects := source.Objects()
	for _, p := range objects.Pods {
		o := KubernetesObject(&objects, "pod/"+p.Namespace+"/"+p.Name)
		if o == nil || o.Command != "kubectl get pod "+p.Name+" -o yaml -n "+p.Namespace || len(o.Fields) == 0 {
			t.Errorf("pod %s: %+v", p.Name, o)
		}
	}
	hostile := snapshot.Objects{Pods: []snapshot.Pod{{Namespace: "default", Name: "a; rm -rf ~\x1b"}}}
	o := KubernetesObject(&hostile, "pod/default/a; rm -rf ~\x1b")
	if o == nil || o.Command != "" || strings.ContainsRune(o.Name, '\x1b') {
		t.Errorf("a hostile name: %+v", o)
	}
	if o := KubernetesObject(&objects, "vm/none"); o != nil {
		t.Errorf("a VM: %+v", o)
	}
}

// TestSelector: a policy rule's packets are named as ip-rule(8) does.
func TestSelector(t *testing.T) {
	r := fib.Rule{Priority: 100, Mark: 1, Mask: 0xff, In: "eth0", Protocol: packet.TCP, Not: true}
	if got, want := selector(&r), "not iif eth0 fwmark 0x1/0xff ipproto tcp"; !strings.EqualFold(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
