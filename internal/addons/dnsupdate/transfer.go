package dnsupdate

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/net/dns/dnsmessage"
)

// perMessage is how many records a message of a transfer has: far from the 64 KiB that a message over TCP can have.
const perMessage = 500

// TransferQuestion asks for a whole zone.
func TransferQuestion(id uint16, zone string) ([]byte, error) {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: id})
	name, err := dnsmessage.NewName(zone + ".")
	if err != nil {
		return nil, fmt.Errorf("zone %q: %w", zone, err)
	}
	if err := errors.Join(b.StartQuestions(), b.Question(dnsmessage.Question{Name: name, Type: dnsmessage.TypeAXFR, Class: dnsmessage.ClassINET})); err != nil {
		return nil, err
	}
	return b.Finish()
}

// TransferZone is the zone that a message asks for as a whole, "" for any other message.
func TransferZone(msg []byte) string {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response || h.OpCode != 0 {
		return ""
	}
	q, err := p.Question()
	if err != nil || q.Type != dnsmessage.TypeAXFR || q.Class != dnsmessage.ClassINET {
		return ""
	}
	return plain(q.Name)
}

// Transfer answers a question for a zone, with as many messages as it takes: the SOA record, all others, and the SOA record again.
func Transfer(question []byte, zone string, records Records, ttl uint32) ([][]byte, error) {
	var p dnsmessage.Parser
	h, err := p.Start(question)
	if err != nil {
		return nil, err
	}
	all, err := zoneRecords(zone, records, ttl)
	if err != nil {
		return nil, err
	}
	var messages [][]byte
	for part := range slices.Chunk(all, perMessage) {
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true, Authoritative: true}, Answers: part}
		packed, err := m.Pack()
		if err != nil {
			return nil, err
		}
		messages = append(messages, packed)
	}
	return messages, nil
}

func zoneRecords(zone string, records Records, ttl uint32) ([]dnsmessage.Resource, error) {
	apex, err := dnsmessage.NewName(zone + ".")
	if err != nil {
		return nil, err
	}
	soa := dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: apex, Type: dnsmessage.TypeSOA, Class: dnsmessage.ClassINET, TTL: ttl},
		Body:   &dnsmessage.SOAResource{NS: apex, MBox: apex, Serial: 1, Refresh: ttl, Retry: ttl, Expire: ttl, MinTTL: ttl},
	}
	all := []dnsmessage.Resource{soa}
	for _, name := range slices.Sorted(maps.Keys(records)) {
		n, err := dnsmessage.NewName(name + ".")
		if err != nil {
			return nil, fmt.Errorf("name %q: %w", name, err)
		}
		for _, a := range records[name] {
			all = append(all, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: n, Class: dnsmessage.ClassINET, TTL: ttl},
				Body:   &dnsmessage.UnknownResource{Type: typeOf(a), Data: a.AsSlice()},
			})
		}
	}
	return append(all, soa), nil
}

// AddTransfer adds what a message of a transfer has to records, and tells whether it is the last one: seen is how many SOA records came in the
// messages before, and with this one.
func AddTransfer(id uint16, msg []byte, records Records, seen *int) (done bool, err error) {
	if err := CheckAnswer(id, msg); err != nil {
		return false, err
	}
	var m dnsmessage.Message
	if err := m.Unpack(msg); err != nil {
		return false, err
	}
	for _, r := range m.Answers {
		name := plain(r.Header.Name)
		switch body := r.Body.(type) {
		case *dnsmessage.SOAResource:
			*seen++
		case *dnsmessage.AResource:
			records[name] = append(records[name], netip.AddrFrom4(body.A))
		case *dnsmessage.AAAAResource:
			records[name] = append(records[name], netip.AddrFrom16(body.AAAA))
		}
	}
	if *seen == 0 {
		return false, errors.New("a transfer begins with the SOA record")
	}
	return *seen >= 2, nil
}
