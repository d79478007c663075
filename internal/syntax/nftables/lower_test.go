package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/testing/ruletest"
)

// script is a Chooser that gives answers in turn and notes the questions.
type script struct {
	answers []int
	asked   []netfilter.Choice
}

func (s *script) Choose(c netfilter.Choice) int {
	s.asked = append(s.asked, c)
	if len(s.asked) <= len(s.answers) {
		return s.answers[len(s.asked)-1]
	}
	return 0
}

// weights returns the labels and weights of a choice.
func weights(c netfilter.Choice) string {
	var all []string
	for _, o := range c.Options {
		all = append(all, fmt.Sprintf("%s %d", o.Label, o.Weight))
	}
	return strings.Join(all, ", ")
}

// walkThrough evaluates every base chain of a hook and returns the last verdict, the translations and the choices.
func walkThrough(t *testing.T, name string, f netfilter.Family, h netfilter.Hook, p *packet.Packet, answers ...int) (netfilter.Verdict,
	[]string, []netfilter.Choice) {
	t.Helper()
	rs := &netfilter.Ruleset{Tables: lower(t, parse(t, read(t, "testdata/"+name+".json")))}
	rs.Index()
	chooser := &script{answers: answers}
	var translations []string
	var v netfilter.Verdict
	for _, c := range rs.Hook(f, h) {
		ctx := &netfilter.Context{Packet: p, Family: f, Hook: h, Chooser: chooser, Host: loopback{ruletest.Links{}}}
		if c.Base.Type == "nat" {
			ctx.Translate = func(n packet.Translation) netfilter.Verdict {
				translations = append(translations, fmt.Sprintf("%t %v-%v:%d-%d %t %s", n.Source, n.Low, n.High, n.PortLow, n.PortHigh, n.FullyRandom,
					n.Chosen))
				return netfilter.Verdict{Kind: netfilter.Accept}
			}
		}
		var err error
		if v, err = c.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if v.Kind != netfilter.Accept {
			break
		}
	}
	return v, translations, chooser.asked
}

func tcp(source, destination string) packet.Packet {
	s, d := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
	p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, Source: s.Addr(), Destination: d.Addr(), SourcePort: packet.Exactly(s.Port()),
		DestinationPort: packet.Exactly(d.Port())}, TTL: 64, Local: packet.Local{In: "eth0"}}
	p.Track = packet.Track{State: packet.New, Flow: &packet.Flow{Original: p.Tuple, Reply: p.Reply()}}
	return p
}

// TestKubeProxy: a service's cluster IP and front end, its endpoints with their weights, and what is masqueraded.
func TestKubeProxy(t *testing.T) {
	const service = "goto endpoint-6HBOEI5F-default/whereami/tcp/__10.13.76.26/80 1, goto endpoint-IJTMGMPN-default/whereami/tcp/__10.13.76.7/80 1"
	for _, c := range []struct {
		from, to string
		answer   int
		want     string
		mark     uint32
		asked    []string
	}{
		{"10.13.76.9:1000", "10.0.159.58:80", 0, "false 10.13.76.26-10.13.76.26:80-80 false ", 0, []string{service}},
		{"10.13.76.9:1000", "10.0.159.58:80", 1, "false 10.13.76.7-10.13.76.7:80-80 false ", 0, []string{service}},
		{"10.13.76.7:1000", "10.0.159.58:80", 1, "false 10.13.76.7-10.13.76.7:80-80 false ", 0x4000, []string{service}},
		{"198.51.100.10:1000", "51.144.176.251:80", 1, "false 10.13.76.7-10.13.76.7:80-80 false ", 0x4000, []string{service}},
		{"198.51.100.10:1000", "10.13.76.4:30080", 0, "false 10.13.76.26-10.13.76.26:80-80 false ", 0x4000, []string{service}},
		{"10.13.76.9:1000", "10.0.0.1:443", 0, "false 203.0.113.1-203.0.113.1:443-443 false ", 0, nil},
		{"10.13.76.9:1000", "10.0.0.1:444", 0, "", 0, nil},
	} {
		p := tcp(c.from, c.to)
		v, translations, asked := walkThrough(t, "kube-proxy", netfilter.IPv4, netfilter.Prerouting, &p, c.answer)
		var questions []string
		for _, q := range asked {
			if q.Kind != netfilter.Random {
				t.Errorf("asked %s %s", q.Kind, q.What)
			}
			questions = append(questions, weights(q))
		}
		if got := strings.Join(translations, ";"); v.Kind != netfilter.Accept || got != c.want || p.Mark != c.mark ||
			!slices.Equal(questions, c.asked) {
			t.Errorf("%s > %s: %s, %q, mark %#x, asked %q", c.from, c.to, v.Kind, got, p.Mark, questions)
		}
	}
	p := tcp("10.13.76.9:1000", "10.13.76.7:80")
	p.Mark, p.Out = 0x4000, "eth0"
	_, translations, _ := walkThrough(t, "kube-proxy", netfilter.IPv4, netfilter.Postrouting, &p)
	if want := []string{"true invalid IP-invalid IP:0-0 true masquerade"}; !slices.Equal(translations, want) || p.Mark != 0 {
		t.Errorf("masquerading: %q, mark %#x", translations, p.Mark)
	}
	p = tcp("10.13.76.9:1000", "10.0.0.77:80")
	if v, _, _ := walkThrough(t, "kube-proxy", netfilter.IPv4, netfilter.Forward, &p); v.Kind != netfilter.Drop {
		t.Errorf("an unallocated cluster IP: %s", v.Kind)
	}
}

// TestChoices: random numbers, counters and hashes ask once, with exact weights; a hash whose values are known is computed.
func TestChoices(t *testing.T) {
	for _, c := range []struct {
		rule    string
		port    packet.Port
		answers []int
		want    netfilter.VerdictKind
		asked   string // kind and weights
	}{
		{`{"match":{"op":"<","left":{"numgen":{"mode":"random","mod":100,"offset":0}},"right":30}},{"drop":null}`, packet.Exactly(1), []int{0},
			netfilter.Drop, "random: matches 30, does not match 70"},
		{`{"match":{"op":"<","left":{"numgen":{"mode":"random","mod":100,"offset":0}},"right":30}},{"drop":null}`, packet.Exactly(1), []int{1},
			netfilter.Accept, "random: matches 30, does not match 70"},
		{`{"match":{"op":"==","left":{"numgen":{"mode":"inc","mod":3,"offset":0}},"right":{"set":[0,{"range":[2,9]}]}}},{"drop":null}`,
			packet.Exactly(1), []int{1}, netfilter.Accept, "counter: matches 2, does not match 1"},
		{`{"vmap":{"key":{"numgen":{"mode":"random","mod":10,"offset":5}},"data":{"set":[[5,{"drop":null}],[{"range":[6,9]},{"accept":null}]]}}}`,
			packet.Exactly(1), []int{0}, netfilter.Drop, "random: drop 1, accept 4, no element 5"},
		{`{"match":{"op":">=","left":{"symhash":{"mod":4}},"right":1}},{"drop":null}`, packet.Exactly(1), []int{0}, netfilter.Drop,
			"hash: matches 3, does not match 1"},
		{`{"mangle":{"key":{"meta":{"key":"mark"}},"value":{"numgen":{"mode":"random","mod":3,"offset":7}}}},` +
			`{"match":{"op":"==","left":{"meta":{"key":"mark"}},"right":9}},{"drop":null}`, packet.Exactly(1), []int{2}, netfilter.Drop,
			"random: 7 1, 8 1, 9 1"},
		{`{"match":{"op":"==","left":{"jhash":{"mod":2,"seed":7,"expr":{"payload":{"protocol":"tcp","field":"sport"}}}},"right":1}},{"drop":null}`,
			packet.OneOf(1, 5, 1), []int{0}, netfilter.Drop, "hash: matches 1, does not match 1"},
		{`{"match":{"op":"<=","left":{"jhash":{"mod":2,"seed":7,"expr":{"payload":{"protocol":"tcp","field":"sport"}}}},"right":1}},{"drop":null}`,
			packet.Exactly(1), nil, netfilter.Drop, ""},
		{`{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"sport"}},"right":{"set":[{"range":[1,10]},20]}}},{"drop":null}`,
			packet.OneOf(2, 5, 2), nil, netfilter.Drop, ""},
		{`{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"sport"}},"right":{"set":[{"range":[1,10]},20]}}},{"drop":null}`,
			packet.OneOf(2, 50, 2), []int{1}, netfilter.Accept, "unknown: matches 0, does not match 0"},
		{`{"vmap":{"key":{"payload":{"protocol":"tcp","field":"sport"}},"data":{"set":[[1,{"drop":null}],[2,{"accept":null}],[9,{"drop":null}]]}}}`,
			packet.OneOf(1, 5, 2), []int{0}, netfilter.Drop, "unknown: drop 0, accept 0, no element 0"},
		{`{"match":{"op":"==","left":{"socket":{"key":"transparent"}},"right":1}},{"drop":null}`, packet.Exactly(1), []int{0}, netfilter.Drop,
			"unknown: matches 0, does not match 0"},
		{`{"what":{"is":"this"}}`, packet.Exactly(1), nil, netfilter.Undecided, ""},
		{`{"mangle":{"key":{"meta":{"key":"mark"}},"value":{"rt":{"key":"classid"}}}}`, packet.Exactly(1), nil, netfilter.Undecided, ""},
		{`{"limit":{"rate":1,"burst":5,"per":"second"}},{"drop":null}`, packet.Exactly(1), []int{0}, netfilter.Drop,
			"history: matches 0, does not match 0"},
		{`{"match":{"op":"!=","left":{"payload":{"protocol":"udp","field":"dport"}},"right":1}},{"drop":null}`, packet.Exactly(1), nil,
			netfilter.Accept, ""},
		{`{"jump":{"target":"absent"}},{"drop":null}`, packet.Exactly(1), []int{0}, netfilter.Drop, "unknown: returns 0, decides 0"},
		{`{"jump":{"target":"absent"}},{"drop":null}`, packet.Exactly(1), []int{1}, netfilter.Undecided, "unknown: returns 0, decides 0"},
	} {
		data := `{"nftables":[{"table":{"family":"ip","name":"t"}},{"chain":{"family":"ip","table":"t","name":"c","type":"filter","hook":"input","prio":0}},` +
			`{"rule":{"family":"ip","table":"t","chain":"c","handle":3,"expr":[` + c.rule + `]}}]}`
		chain := lower(t, parse(t, []byte(data)))[0].Chains[0]
		rs := &netfilter.Ruleset{Tables: []*netfilter.Table{chain.Table}}
		rs.Index()
		p := tcp("10.0.0.1:1", "10.0.0.2:2")
		p.SourcePort = c.port
		chooser := &script{answers: c.answers}
		v, err := chain.Run(&netfilter.Context{Packet: &p, Hook: netfilter.Input, Chooser: chooser})
		asked := ""
		for _, q := range chooser.asked {
			asked += q.Kind.String() + ": " + weights(q)
		}
		if err != nil || v.Kind != c.want || asked != c.asked {
			t.Errorf("%s: %s %q, %v, asked %q", chain.Rules[0].Text, v.Kind, v.Detail, err, asked)
		}
	}
}

func TestLowerErrors(t *testing.T) {
	table := `{"table":{"family":"ip","name":"t"}}`
	for _, list := range []string{
		`{"table":{"family":"ipx","name":"t"}}`,
		`{"chain":{"family":"ip","table":"t","name":"c"}}`,
		table + `,{"chain":{"family":"ip","table":"t","name":"c","hook":"x","prio":0}}`,
		table + `,{"chain":{"family":"ip","table":"t","name":"c","hook":"input","prio":"filter"}}`,
		table + `,{"rule":{"family":"ip","table":"t","chain":"c","expr":[]}}`,
		`{"set":{"family":"ip","table":"t","name":"s","type":"ipv4_addr"}}`,
		table + `,{"element":{"family":"ip","table":"t","name":"s","elem":[1]}}`,
	} {
		if tables, err := Lower(parse(t, []byte(`{"nftables":[`+list+`]}`))); err == nil {
			t.Errorf("%s is lowered: %v", list, tables)
		}
	}
	for _, text := range []string{"", "{", `{"nftables":1}`, `[]`, `{"nftables":[]}x`, `{"a":"\u12"}`, `{"nftables":[1e]}`, `{"a" 1}`,
		`{"a":tru}`,
		strings.Repeat("[", 200), "table ip t {}"} {
		if rs, err := Parse([]byte(text)); err == nil {
			t.Errorf("%q is parsed: %v", text, rs)
		}
	}
}

// TestFabric: this project's own rules: the load balancer's choice is the hash's, and each back end leaves by its own block of ports.
func TestFabric(t *testing.T) {
	marks := map[uint32]bool{}
	for port := range uint16(40) {
		p := tcp("198.51.100.10:1000", "203.0.113.10:80")
		p.In, p.SourcePort = "internet", packet.Exactly(1000+port)
		v, _, asked := walkThrough(t, "fabric-world-a", netfilter.IPv4, netfilter.Prerouting, &p)
		if v.Kind != netfilter.Accept || len(asked) > 0 || p.Mark == 0 || p.Mark != p.Track.Flow.Mark {
			t.Fatalf("port %d: %s, mark %d, connection mark %d, asked %v", port, v.Kind, p.Mark, p.Track.Flow.Mark, asked)
		}
		marks[p.Mark] = true
	}
	if len(marks) != 2 {
		t.Errorf("back ends %v", marks)
	}
	p := tcp("198.51.100.10:1000", "203.0.113.10:80")
	p.In, p.SourcePort = "internet", packet.OneOf(32768, 60999, 40000)
	if _, _, asked := walkThrough(t, "fabric-world-a", netfilter.IPv4, netfilter.Prerouting, &p, 1); len(asked) != 1 ||
		asked[0].Kind != netfilter.Hash ||
		weights(asked[0]) != "0x00000001 1, 0x00000002 1" || p.Mark != 2 {
		t.Errorf("asked %+v, mark %d", asked, p.Mark)
	}
	for from, want := range map[string][]string{
		"10.13.76.4:1000": {"true 203.0.113.10-203.0.113.10:1024-2047 false "},
		"10.13.76.7:1000": {"true 203.0.113.10-203.0.113.10:2048-3071 false "},
		"10.13.1.4:1000":  {"true 203.0.113.2-203.0.113.2:0-0 false "},
		"10.9.9.9:1000":   nil,
	} {
		p := tcp(from, "198.51.100.10:80")
		p.In, p.Out = "nic1", "internet"
		if _, got, asked := walkThrough(t, "fabric-world-a", netfilter.IPv4, netfilter.Postrouting, &p); !slices.Equal(got, want) ||
			len(asked) > 0 {
			t.Errorf("%s: %q, asked %v", from, got, asked)
		}
	}
}
