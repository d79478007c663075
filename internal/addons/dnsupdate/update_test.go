package dnsupdate

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/net/dns/dnsmessage"
)

var addressCmp = cmpopts.EquateComparable(netip.Addr{})

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

var sample = Update{ID: 7, Zone: "z.aksapp.io", Operations: []Operation{
	{Kind: DeleteName, Name: "gone.z.aksapp.io"},
	{Kind: Add, Name: "a.z.aksapp.io", Address: addr("203.0.113.10"), TTL: 300},
	{Kind: Add, Name: "*.z.aksapp.io", Address: addr("2001:db8::1"), TTL: 60},
	{Kind: Delete, Name: "b.z.aksapp.io", Address: addr("203.0.113.11")},
	{Kind: DeleteSet, Name: "c.z.aksapp.io", Address: netip.IPv6Unspecified()},
}}

func TestPackAndParse(t *testing.T) {
	msg, err := sample.Pack()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(msg)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample, got, addressCmp); diff != "" {
		t.Error(diff)
	}
	if err := CheckAnswer(7, Answer(msg, OK)); err != nil {
		t.Error(err)
	}
	if err := CheckAnswer(8, Answer(msg, OK)); err == nil {
		t.Error("the answer to another update is taken")
	}
	if err := CheckAnswer(7, Answer(msg, Refused)); err == nil {
		t.Error("a refusal is taken")
	}
}

// The sections of RFC 2136, 2.5, written by hand with the message package.
func TestParseOthers(t *testing.T) {
	zone := dnsmessage.Question{Name: dnsmessage.MustNewName("Z.aksapp.io."), Type: dnsmessage.TypeSOA, Class: dnsmessage.ClassINET}
	record := func(name string, class dnsmessage.Class, kind dnsmessage.Type, data ...byte) []dnsmessage.Resource {
		return []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Class: class}, Body: &dnsmessage.UnknownResource{Type: kind, Data: data}}}
	}
	for name, tt := range map[string]struct {
		m    dnsmessage.Message
		want string
	}{
		"upper case": {dnsmessage.Message{Questions: []dnsmessage.Question{zone}, Authorities: record("A.z.AKSAPP.io.", dnsmessage.ClassINET, dnsmessage.TypeA, 1, 2, 3, 4)}, "[{0 a.z.aksapp.io 1.2.3.4 0}]"},
		"nothing":    {dnsmessage.Message{Questions: []dnsmessage.Question{zone}}, "[]"},
		"no zone":    {dnsmessage.Message{}, "RCodeFormatError"},
		"other zone": {dnsmessage.Message{Questions: []dnsmessage.Question{zone}, Authorities: record("a.y.aksapp.io.", dnsmessage.ClassINET, dnsmessage.TypeA, 1, 2, 3, 4)}, "10"},
		"short":      {dnsmessage.Message{Questions: []dnsmessage.Question{zone}, Authorities: record("a.z.aksapp.io.", dnsmessage.ClassINET, dnsmessage.TypeA, 1, 2, 3)}, "RCodeFormatError"},
		"no host":    {dnsmessage.Message{Questions: []dnsmessage.Question{zone}, Authorities: record("a\n.z.aksapp.io.", dnsmessage.ClassINET, dnsmessage.TypeA, 1, 2, 3, 4)}, "RCodeFormatError"},
		"text":       {dnsmessage.Message{Questions: []dnsmessage.Question{zone}, Authorities: record("a.z.aksapp.io.", dnsmessage.ClassINET, dnsmessage.TypeTXT, 1, 'x')}, "RCodeNotImplemented"},
		"condition":  {dnsmessage.Message{Questions: []dnsmessage.Question{zone}, Answers: record("a.z.aksapp.io.", dnsmessage.ClassANY, dnsmessage.TypeALL)}, "RCodeNotImplemented"},
	} {
		tt.m.OpCode = OpCode
		msg, err := tt.m.Pack()
		if err != nil {
			t.Fatal(name, err)
		}
		u, err := Parse(msg)
		got := fmt.Sprint(u.Operations)
		var refusal *Error
		if errors.As(err, &refusal) {
			got = refusal.Code.String()
		}
		if got != tt.want {
			t.Errorf("%s: %s (%v), want %s", name, got, err, tt.want)
		}
	}
}

func TestApply(t *testing.T) {
	before := Records{
		"gone.z.aksapp.io": {addr("1.1.1.1")}, "b.z.aksapp.io": {addr("203.0.113.11"), addr("203.0.113.12")},
		"c.z.aksapp.io": {addr("1.1.1.1"), addr("2001:db8::2")}, "a.z.aksapp.io": {addr("203.0.113.10")},
	}
	first := before["b.z.aksapp.io"]
	sample.Apply(before)
	want := Records{
		"a.z.aksapp.io": {addr("203.0.113.10")}, "*.z.aksapp.io": {addr("2001:db8::1")}, "b.z.aksapp.io": {addr("203.0.113.12")}, "c.z.aksapp.io": {addr("1.1.1.1")},
	}
	if diff := cmp.Diff(want, before, addressCmp); diff != "" {
		t.Error(diff)
	}
	if first[0] != addr("203.0.113.11") {
		t.Error("a list that others may have was changed")
	}
}

func TestTransfer(t *testing.T) {
	want := Records{}
	for i := range 1200 {
		want[fmt.Sprintf("n%d.z.aksapp.io", i)] = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), addr("2001:db8::1")}
	}
	for _, records := range []Records{want, {}} {
		question, err := TransferQuestion(3, "z.aksapp.io")
		if err != nil || TransferZone(question) != "z.aksapp.io" {
			t.Fatal(err)
		}
		messages, err := Transfer(question, "z.aksapp.io", records, 30)
		if err != nil {
			t.Fatal(err)
		}
		got, seen := Records{}, 0
		for i, m := range messages {
			done, err := AddTransfer(3, m, got, &seen)
			if err != nil || done != (i == len(messages)-1) {
				t.Fatalf("message %d of %d: done %v, %v", i, len(messages), done, err)
			}
		}
		if diff := cmp.Diff(records, got, addressCmp); diff != "" {
			t.Error(diff)
		}
	}
}

func FuzzParse(f *testing.F) {
	msg, err := sample.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(msg)
	f.Fuzz(func(t *testing.T, msg []byte) {
		_ = Answer(msg, OK)
		u, err := Parse(msg)
		if err != nil {
			return
		}
		packed, err := u.Pack()
		if err != nil {
			return // a name that is too long once it is written out, or has a dot in a label
		}
		again, err := Parse(packed)
		if diff := cmp.Diff(u, again, addressCmp, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatalf("%v %s", err, diff)
		}
	})
}
