package dns

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// A Refusal is why an update is not taken, with the code of the answer (RFC 2136, 2.2).
type refusal struct {
	Code   int
	Reason string
}

func (r *refusal) Error() string { return r.Reason }

func newRefusal(code int, format string, a ...any) error {
	return &refusal{code, fmt.Sprintf(format, a...)}
}

// apply gives a zone's records after an update; r stays as it is. Its errors are *refusal: prerequisites, and records of other types than
// addresses, are answered with NOTIMP.
func (r Records) apply(zone string, update *dns.Msg) (Records, error) {
	switch q := update.Question; {
	case len(q) != 1 || q[0].Qtype != dns.TypeSOA || q[0].Qclass != dns.ClassINET:
		return nil, newRefusal(dns.RcodeFormatError, "an update names one zone (type SOA, class IN)")
	case plain(q[0].Name) != zone:
		return nil, newRefusal(dns.RcodeNotAuth, "no such zone: %s", plain(q[0].Name))
	case len(update.Answer) > 0:
		return nil, newRefusal(dns.RcodeNotImplemented, "prerequisites are not understood here")
	}
	next := Records{}
	maps.Copy(next, r)
	for _, rr := range update.Ns {
		if err := next.change(zone, rr); err != nil {
			return nil, err
		}
	}
	if n := next.count(); n > maxRecords {
		return nil, newRefusal(dns.RcodeRefused, "%d addresses; a zone has %d at most", n, maxRecords)
	}
	return next, nil
}

// change makes one change (RFC 2136, 3.4.2), in a list of addresses of its own.
func (r Records) change(zone string, rr dns.RR) error {
	h := rr.Header()
	name := plain(h.Name)
	switch {
	case !isHostName(name):
		return newRefusal(dns.RcodeFormatError, "%q is no host's name", name)
	case !InZone(name, zone):
		return newRefusal(dns.RcodeNotZone, "%s is not in zone %s", name, zone)
	case h.Class == dns.ClassANY && h.Rrtype == dns.TypeANY && h.Rdlength == 0:
		delete(r, name)
		return nil
	case h.Rrtype != dns.TypeA && h.Rrtype != dns.TypeAAAA:
		return newRefusal(dns.RcodeNotImplemented, "%s: records of type %s are not understood here", name, dns.Type(h.Rrtype))
	}
	var of netip.Addr
	if h.Class != dns.ClassANY {
		var err error
		if of, err = address(rr); err != nil || !of.IsValid() {
			return newRefusal(dns.RcodeFormatError, "%s: a record without an address", name)
		}
	}
	left := slices.Clone(r[name])
	switch {
	case h.Class == dns.ClassANY && h.Rdlength == 0:
		left = slices.DeleteFunc(left, func(a netip.Addr) bool { return a.Is4() == (h.Rrtype == dns.TypeA) })
	case h.Class == dns.ClassNONE:
		left = slices.DeleteFunc(left, func(a netip.Addr) bool { return a == of })
	case h.Class == dns.ClassINET && !slices.Contains(left, of):
		left = append(left, of)
		slices.SortFunc(left, netip.Addr.Compare)
	case h.Class != dns.ClassINET:
		return newRefusal(dns.RcodeFormatError, "%s: class %s", name, dns.Class(h.Class))
	}
	r[name] = left
	if len(left) == 0 {
		delete(r, name)
	}
	return nil
}

// updateTTL is external-dns's default for records without a lifetime, in seconds.
const updateTTL = 300

// Difference returns the update that makes a zone another one, nil when there is none: names that differ are made anew.
func Difference(zone string, have, want Records) (*dns.Msg, error) {
	m := new(dns.Msg).SetUpdate(zone + ".")
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if !slices.Equal(have[name], want[name]) {
			m.RemoveName([]dns.RR{&dns.ANY{Hdr: dns.RR_Header{Name: name + "."}}})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if slices.Equal(have[name], want[name]) {
			continue
		}
		if !isHostName(name) {
			return nil, fmt.Errorf("DNS cannot have the name %q", name)
		}
		for _, a := range want[name] {
			rr := record(name+".", a)
			rr.Header().Ttl = updateTTL
			m.Insert([]dns.RR{rr})
		}
	}
	if len(m.Ns) == 0 {
		return nil, nil
	}
	return m, nil
}
