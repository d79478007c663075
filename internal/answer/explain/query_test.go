package explain

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// queryTo returns a query of pod default/web to a server, with the outcomes that have some ends.
func queryTo(server string, resolved bool, outcomes ...walk.Outcome) *Query {
	p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.UDP, Destination: netip.MustParseAddr(server), DestinationPort: packet.Exactly(53)}}
	q := &Query{Name: "example.com.", Resolved: resolved, Result: &walk.Result{Request: walk.Request{Host: "pod/default/web", Packet: p}, Outcomes: outcomes}}
	if !resolved {
		q.Unanswered = "silence"
	}
	q.Options.Owners = NewOwners(snapshot.Objects{Services: []snapshot.Service{{
		Namespace: "kube-system", Name: "kube-dns", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.10")},
	}}}, &attribution.Book{})
	return q
}

// TestQuery shows who asks which resolver, who answers, and what becomes of queries that are not answered.
func TestQuery(t *testing.T) {
	end := func(kind walk.EndKind, host, why string) walk.End { return walk.End{Kind: kind, Host: host, Why: why} }
	back := end(walk.Delivered, "pod/default/web", "")
	answered := func(host string) walk.Outcome {
		return walk.Outcome{End: end(walk.Delivered, host, ""), BackEnd: &back}
	}
	ended := func(kind walk.EndKind) walk.Outcome { return walk.Outcome{End: end(kind, "node/n", "a reason")} }
	lostBack := end(walk.Dropped, "node/n", "a reason")
	silent := walk.Outcome{End: end(walk.Delivered, "pod/kube-system/coredns-1", ""), BackEnd: &lostBack}
	refused := answered("node/n")
	refused.End.Refused = true
	more := queryTo("10.0.0.10", true, answered("pod/kube-system/coredns-1"), ended(walk.Dropped))
	more.Result.More = true
	assumed := queryTo("169.254.10.11", true, answered("node/n"))
	assumed.Result.Assumed = []walk.Assumption{{What: "something"}}
	const kubeDNS = "pod default/web asks 10.0.0.10 (service kube-system/kube-dns: cluster IP) for example.com: "
	for name, test := range map[string]struct {
		query *Query
		fate  QueryFate
		want  string
	}{
		"LocalDNS": {queryTo("169.254.10.11", true, answered("node/n")), QueryAnswered,
			"pod default/web asks 169.254.10.11 (AKS LocalDNS) for example.com: node n answers"},
		"VNet's server": {queryTo("168.63.129.16", true, answered("fabric")), QueryAnswered,
			"pod default/web asks 168.63.129.16 (Azure's DNS of the VNet) for example.com: fabric answers"},
		"another server": {queryTo("10.9.9.9", true, answered("vm/dns")), QueryAnswered, "pod default/web asks 10.9.9.9 for example.com: vm dns answers"},
		"two pods": {queryTo("10.0.0.10", true, answered("pod/kube-system/coredns-1"), answered("pod/kube-system/coredns-2")), QueryAnswered,
			kubeDNS + "pod kube-system/coredns-1 or pod kube-system/coredns-2 answers"},
		"many pods": {queryTo("10.0.0.10", true, answered("pod/a"), answered("pod/b"), answered("pod/c"), answered("pod/d")), QueryAnswered,
			kubeDNS + "one of 4 answers, such as pod a"},
		"some dropped": {queryTo("10.0.0.10", true, answered("pod/a"), ended(walk.Dropped)), QueryAnswered, kubeDNS + "pod a answers; or dropped on node n: a reason"},
		"dropped": {queryTo("10.0.0.10", false, ended(walk.Dropped)), QueryLost,
			kubeDNS + "dropped on node n: a reason; the name was not resolved: silence"},
		"reply dropped": {queryTo("10.0.0.10", false, silent), QueryLost,
			kubeDNS + "the query gets to pod kube-system/coredns-1, but the reply does not arrive: dropped on node n: a reason; the name was not resolved: silence"},
		"nothing listens": {queryTo("10.0.0.10", false, refused), QueryLost,
			kubeDNS + "the query gets to node n, but nothing listens on ?; the name was not resolved: silence"},
		"dropped, and yet an answer": {queryTo("10.0.0.10", true, ended(walk.Dropped)), QueryUnknown,
			kubeDNS + "dropped on node n: a reason; an answer has come, whatever the walk says"},
		"unknown": {queryTo("10.0.0.10", true, ended(walk.Undecided)), QueryUnknown,
			kubeDNS + "it is unknown whether the destination sees the packet: a reason; an answer has come, whatever the walk says"},
		"beyond, with an answer": {queryTo("168.63.129.16", true, ended(walk.Left)), QueryAnswered,
			"pod default/web asks 168.63.129.16 (Azure's DNS of the VNet) for example.com: the query leaves the captured network on node n; an answer has come"},
		"beyond, without": {queryTo("168.63.129.16", false, ended(walk.Left)), QueryUnknown,
			"pod default/web asks 168.63.129.16 (Azure's DNS of the VNet) for example.com: the query leaves the captured network on node n; the name was not resolved: silence"},
		"more outcomes": {more, QueryUnknown, kubeDNS + "pod kube-system/coredns-1 answers; or dropped on node n: a reason"},
		"assumed":       {assumed, QueryAnswered, "pod default/web asks 169.254.10.11 (AKS LocalDNS) for example.com: node n answers (assumptions: see -o wide)"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.query.Fate(); got != test.fate {
				t.Errorf("fate %s, want %s", got, test.fate)
			}
			if got := test.query.Text(); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestQueryBeforePacket shows a query in each form of output: before a packet that is sent, and in place of one that is not.
func TestQueryBeforePacket(t *testing.T) {
	e := dropped(t)
	back := walk.End{Kind: walk.Delivered, Host: "pod/default/web"}
	sent := Options{Owners: ownersOf(e.objects), Query: queryTo("169.254.10.11", true, walk.Outcome{End: walk.End{Kind: walk.Delivered, Host: "node/n"}, BackEnd: &back})}
	sent.Query.Options.Notes = []string{"kernel: 3 of 3 steps agree"}
	lost := Options{Query: queryTo("10.0.0.10", false, walk.Outcome{End: walk.End{Kind: walk.Dropped, Host: "node/n", Why: "a reason"}})}
	open := Options{Query: queryTo("10.0.0.10", false, walk.Outcome{End: walk.End{Kind: walk.Undecided, Host: "node/n", Why: "a reason"}})}
	for name, c := range map[string]struct {
		options Options
		result  *walk.Result
		want    []string // in this order
	}{
		"sent":    {sent, e.result, []string{"DNS: pod default/web asks 169.254.10.11", "\n\ntcp 10.13.76.7:41000 → 10.13.1.4:5432\n", "the destination sees nothing: dropped on node n"}},
		"lost":    {lost, nil, []string{"DNS: pod default/web asks 10.0.0.10", "\nthe destination sees nothing: its name is not resolved; "}},
		"unknown": {open, nil, []string{"DNS: pod default/web asks 10.0.0.10", "\nit is unknown whether the name is resolved; "}},
	} {
		t.Run(name, func(t *testing.T) {
			var text, wide, doc bytes.Buffer
			if err := Text(&text, c.result, c.options); err != nil {
				t.Fatal(err)
			}
			if err := Wide(&wide, c.result, c.options); err != nil {
				t.Fatal(err)
			}
			for _, got := range []string{text.String(), wide.String()} {
				at := 0
				for _, want := range c.want {
					i := strings.Index(got[at:], want)
					if i < 0 {
						t.Fatalf("no %q behind byte %d of\n%s", want, at, got)
					}
					at += i + len(want)
				}
			}
			const way = "\nnode n\n  end     " // of the query alone: the packet's has more lines
			if !strings.Contains(wide.String(), way) || strings.Contains(text.String(), way) {
				t.Errorf("the query's own walk: text\n%s\nwide\n%s", &text, &wide)
			}
			if c.result != nil && !strings.Contains(text.String(), "\n  kernel: 3 of 3 steps agree\n") {
				t.Errorf("no notes of the query:\n%s", &text)
			}
			if err := JSON(&doc, c.result, c.options); err != nil {
				t.Fatal(err)
			}
			var got Document
			if err := json.Unmarshal(doc.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			q := got.Query
			if q == nil || q.Name != "example.com" || q.Fate != c.options.Query.Fate() || len(q.Walk.Outcomes) != 1 || (len(got.Outcomes) == 0) != (c.result == nil) {
				t.Errorf("%s", &doc)
			}
		})
	}
}
