package dns

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"
)

// rr makes a record of the update section (RFC 2136, 2.5) from its bytes.
func rr(t *testing.T, name string, class, kind uint16, data ...byte) dns.RR {
	t.Helper()
	wire := make([]byte, 300)
	end, err := dns.PackDomainName(name, wire, 0, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	wire = append(wire[:end], byte(kind>>8), byte(kind), byte(class>>8), byte(class), 0, 0, 0, 0, 0, byte(len(data)))
	out, _, err := dns.UnpackRR(append(wire, data...), 0)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out
}

func TestApply(t *testing.T) {
	have := Records{"a.z.aksapp.io": {addr("1.1.1.1"), addr("203.0.113.11"), addr("2001:db8::2")}}
	zone := func(m *dns.Msg) { m.SetUpdate("Z.aksapp.io.") }
	one := func(name string, class, kind uint16, data ...byte) func(*dns.Msg) {
		return func(m *dns.Msg) { zone(m); m.Ns = []dns.RR{rr(t, name, class, kind, data...)} }
	}
	const in, none, all = dns.ClassINET, dns.ClassNONE, dns.ClassANY
	for name, tt := range map[string]struct {
		change func(*dns.Msg)
		want   string // the addresses of a.z.aksapp.io, or the code of the refusal
	}{
		"nothing":        {zone, "[1.1.1.1 203.0.113.11 2001:db8::2]"},
		"add":            {one("A.z.AKSAPP.io.", in, dns.TypeA, 1, 2, 3, 4), "[1.1.1.1 1.2.3.4 203.0.113.11 2001:db8::2]"},
		"add again":      {one("a.z.aksapp.io.", in, dns.TypeA, 1, 1, 1, 1), "[1.1.1.1 203.0.113.11 2001:db8::2]"},
		"delete name":    {one("a.z.aksapp.io.", all, dns.TypeANY), "[]"},
		"delete family":  {one("a.z.aksapp.io.", all, dns.TypeA), "[2001:db8::2]"},
		"delete family6": {one("a.z.aksapp.io.", all, dns.TypeAAAA), "[1.1.1.1 203.0.113.11]"},
		"delete one":     {one("a.z.aksapp.io.", none, dns.TypeA, 1, 1, 1, 1), "[203.0.113.11 2001:db8::2]"},
		"no zone":        {func(m *dns.Msg) { m.Question = nil }, "FORMERR"},
		"zone by A":      {func(m *dns.Msg) { m.SetQuestion("z.aksapp.io.", dns.TypeA) }, "FORMERR"},
		"another zone":   {func(m *dns.Msg) { m.SetUpdate("y.aksapp.io.") }, "NOTAUTH"},
		"outside":        {one("a.y.aksapp.io.", in, dns.TypeA, 1, 2, 3, 4), "NOTZONE"},
		"short":          {one("a.z.aksapp.io.", in, dns.TypeA), "FORMERR"},
		"no host":        {one(`a\010.z.aksapp.io.`, in, dns.TypeA, 1, 2, 3, 4), "FORMERR"},
		"dot in a label": {one(`a\.b.z.aksapp.io.`, in, dns.TypeA, 1, 2, 3, 4), "FORMERR"},
		"text":           {one("a.z.aksapp.io.", in, dns.TypeTXT, 1, 'x'), "NOTIMP"},
		"class":          {one("a.z.aksapp.io.", dns.ClassCHAOS, dns.TypeA, 1, 2, 3, 4), "FORMERR"},
		"condition":      {func(m *dns.Msg) { zone(m); m.Answer = []dns.RR{rr(t, "a.z.aksapp.io.", all, dns.TypeANY)} }, "NOTIMP"},
	} {
		m := new(dns.Msg)
		tt.change(m)
		next, err := have.apply("z.aksapp.io", m)
		got := fmt.Sprint(next["a.z.aksapp.io"])
		var refusal *refusal
		if errors.As(err, &refusal) {
			got = dns.RcodeToString[refusal.Code]
		}
		if got != tt.want {
			t.Errorf("%s: %s (%v), want %s", name, got, err, tt.want)
		}
		if len(have["a.z.aksapp.io"]) != 3 || have["a.z.aksapp.io"][0] != addr("1.1.1.1") {
			t.Fatalf("%s: what was there is changed: %v", name, have)
		}
	}
}

func TestDifference(t *testing.T) {
	a, b := addr("203.0.113.10"), addr("2001:db8::1")
	have := Records{"gone.z.aksapp.io": {a}, "stays.z.aksapp.io": {a, b}, "moves.z.aksapp.io": {a}}
	want := Records{"stays.z.aksapp.io": {a, b}, "moves.z.aksapp.io": {b}, "*.z.aksapp.io": {a}, "z.aksapp.io": {a}}
	m, err := Difference("z.aksapp.io", have, want)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := m.Pack() // as the server gets it
	if err == nil {
		err = m.Unpack(wire)
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := have.apply("z.aksapp.io", m)
	if diff := cmp.Diff(want, got, addressCmp); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if m, err := Difference("z.aksapp.io", want, want); m != nil || err != nil {
		t.Errorf("no difference: %v, %v", m, err)
	}
	for _, name := range []string{strings.Repeat("x", 64) + ".z.aksapp.io", strings.Repeat("x.", 130) + "z.aksapp.io", "a\nb.z.aksapp.io"} {
		if _, err := Difference("z.aksapp.io", nil, Records{name: {a}}); err == nil {
			t.Errorf("%q: no error", name)
		}
	}
}

// FuzzUpdate: whatever comes, a zone has names and addresses that its file can have, and what the file says is what the zone is.
func FuzzUpdate(f *testing.F) {
	m, err := Difference("z.aksapp.io", Records{"b.z.aksapp.io": {addr("1.1.1.1")}},
		Records{"*.z.aksapp.io": {addr("1.2.3.4"), addr("::ffff:1.2.3.4")}})
	if err != nil {
		f.Fatal(err)
	}
	wire, err := m.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire)
	f.Fuzz(func(t *testing.T, wire []byte) {
		m := new(dns.Msg)
		if m.Unpack(wire) != nil {
			return
		}
		have := Records{"b.z.aksapp.io": {addr("1.1.1.1"), addr("2001:db8::2")}}
		_ = have.answer(m)
		next, err := have.apply("z.aksapp.io", m)
		if err != nil {
			return
		}
		if diff := cmp.Diff(next, parseLines(next.lines()), addressCmp, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		for name, all := range next {
			if !InZone(name, "z.aksapp.io") || len(all) == 0 || !isHostName(name) || all[0] == (netip.Addr{}) {
				t.Errorf("%q: %v", name, all)
			}
		}
	})
}
