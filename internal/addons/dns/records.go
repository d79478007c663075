package dns

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Records are the addresses of names, which are lower case and without the last dot; a name "*.zone" answers for every name below the zone.
type Records map[string][]netip.Addr

// maxRecords is how many addresses a zone has at most, over all names.
const maxRecords = 10_000

// ttl is that of answers, in seconds: a lab's names change with the lab.
const ttl = 30

// ParseRecords reads "name=address[,address…]", each a name's.
func ParseRecords(args []string) (Records, error) {
	r := Records{}
	for _, arg := range args {
		name, list, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not name=address[,address…]", arg)
		}
		for _, text := range strings.Split(list, ",") {
			address, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", arg, err)
			}
			r[plain(name)] = append(r[plain(name)], address)
		}
	}
	return r, nil
}

// parseLines reads a zone's file: one "NAME ADDRESS" a line. Other lines, and those beyond maxRecords, are left out.
func parseLines(text []byte) Records {
	r, n := Records{}, 0
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan() && n < maxRecords; {
		name, address, _ := strings.Cut(lines.Text(), " ")
		if a, err := netip.ParseAddr(address); err == nil && isHostName(name) {
			r[name] = append(r[name], a)
			n++
		}
	}
	return r
}

// lines returns what parseLines reads.
func (r Records) lines() []byte {
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(r)) {
		for _, a := range r[name] {
			b = fmt.Appendf(b, "%s %s\n", name, a)
		}
	}
	return b
}

func (r Records) count() (n int) {
	for _, all := range r {
		n += len(all)
	}
	return n
}

// answer returns the reply to a query.
func (r Records) answer(query *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(query)
	m.Authoritative = true
	if query.Opcode != dns.OpcodeQuery || len(query.Question) != 1 {
		m.Rcode = dns.RcodeNotImplemented
		return m
	}
	q := query.Question[0]
	if q.Qclass != dns.ClassINET && q.Qclass != dns.ClassANY {
		return m
	}
	name := plain(q.Name)
	if dns.IsSubDomain("in-addr.arpa.", q.Name) || dns.IsSubDomain("ip6.arpa.", q.Name) {
		owner := r.pointer(name)
		if owner == "" {
			m.Rcode = dns.RcodeNameError
		} else if q.Qtype == dns.TypePTR || q.Qtype == dns.TypeANY {
			m.Answer = []dns.RR{&dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: owner + "."}}
		}
		return m
	}
	addresses, exists := r.find(name)
	if !exists {
		m.Rcode = dns.RcodeNameError
	}
	for _, a := range addresses {
		if rr := record(q.Name, a); q.Qtype == dns.TypeANY || q.Qtype == rr.Header().Rrtype {
			m.Answer = append(m.Answer, rr)
		}
	}
	return m
}

// find gives a name's addresses, or those of the closest wildcard (RFC 4592).
func (r Records) find(name string) ([]netip.Addr, bool) {
	if found, ok := r[name]; ok {
		return found, true
	}
	for rest := name; ; {
		_, parent, ok := strings.Cut(rest, ".")
		if !ok {
			return nil, false
		}
		if found, ok := r["*."+parent]; ok {
			return found, true
		}
		rest = parent
	}
}

// pointer finds the first name, "" for none, of the address that a name under in-addr.arpa or ip6.arpa is for; wildcards have none.
func (r Records) pointer(reverse string) (first string) {
	for name, addresses := range r {
		for _, a := range addresses {
			if of, _ := dns.ReverseAddr(a.String()); plain(of) == reverse && !strings.HasPrefix(name, "*") && (first == "" || name < first) {
				first = name
			}
		}
	}
	return first
}

// soa returns the one of a zone whose records have no history.
func soa(zone string) dns.RR {
	apex := zone + "."
	return &dns.SOA{Hdr: header(apex, dns.TypeSOA), Ns: apex, Mbox: apex, Serial: 1, Refresh: ttl, Retry: ttl, Expire: ttl, Minttl: ttl}
}

// all returns the records of a zone as a transfer has them: the SOA record, all others, and the SOA record again.
func (r Records) all(zone string) []dns.RR {
	out := []dns.RR{soa(zone)}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		for _, a := range r[name] {
			out = append(out, record(name+".", a))
		}
	}
	return append(out, soa(zone))
}

// add takes in the address of a record, and passes records of other types over.
func (r Records) add(rr dns.RR) error {
	a, err := address(rr)
	if err == nil && a.IsValid() {
		name := plain(rr.Header().Name)
		r[name] = append(r[name], a)
	}
	return err
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

func record(name string, a netip.Addr) dns.RR {
	if a.Is4() {
		return &dns.A{Hdr: header(name, dns.TypeA), A: a.AsSlice()}
	}
	return &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: a.AsSlice()}
}

// address returns a record's; the zero one for a record of another type.
func address(rr dns.RR) (a netip.Addr, err error) {
	ok := true
	switch rr := rr.(type) {
	case *dns.A:
		a, ok = netip.AddrFromSlice(rr.A.To4())
	case *dns.AAAA:
		a, ok = netip.AddrFromSlice(rr.AAAA.To16())
	}
	if !ok {
		return a, errors.New("a record without an address")
	}
	return a, nil
}

// plain returns a name in lower case and without the last dot.
func plain(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// InZone reports whether a name, in lower case and without the last dot, is a zone's.
func InZone(name, zone string) bool { return name == zone || strings.HasSuffix(name, "."+zone) }

// isHostName reports whether a name is one that DNS can have, made of what host names are made of, and perhaps a wildcard: nothing that a
// file or a log takes for something else.
func isHostName(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	_, valid := dns.IsDomainName(name)
	rest := strings.TrimPrefix(name, "*.")
	return valid && rest != "" && !strings.ContainsFunc(rest, func(r rune) bool { return !strings.ContainsRune(letters, r) })
}
