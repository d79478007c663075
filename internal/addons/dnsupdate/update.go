package dnsupdate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// OpCode is that of updates (RFC 2136, 1.3).
const OpCode = 5

// Classes that updates use beside IN (RFC 2136, 2.5).
const (
	classNone = dnsmessage.Class(254)
	classAny  = dnsmessage.ClassANY
	typeAny   = dnsmessage.TypeALL
)

// The codes of answers to updates (RFC 1035, 4.1.1; RFC 2136, 2.2).
const (
	OK             = dnsmessage.RCodeSuccess
	FormatError    = dnsmessage.RCodeFormatError
	NotImplemented = dnsmessage.RCodeNotImplemented
	Failure        = dnsmessage.RCodeServerFailure
	Refused        = dnsmessage.RCodeRefused
	NotZone        = dnsmessage.RCode(10) // a name is not in the zone
)

// A Kind is what an operation does.
type Kind int

// The operations, in the order of RFC 2136, 2.5.
const (
	Add        Kind = iota // an address to a name
	DeleteSet              // all addresses of a family
	DeleteName             // all of a name
	Delete                 // one address
)

// An Operation is one change of a zone.
type Operation struct {
	Kind    Kind
	Name    string     // lower case, without the last dot; a wildcard begins with "*."
	Address netip.Addr // of Add and Delete; of DeleteSet any one of the family
	TTL     uint32     // seconds; of Add
}

// An Update is the changes of a zone that are made together, in their order.
type Update struct {
	ID         uint16
	Zone       string // lower case, without the last dot
	Operations []Operation
}

// Records are the addresses of names, which are lower case and without the last dot.
type Records map[string][]netip.Addr

// Apply makes the changes. It changes no list that is there: copies of the map stay as they are.
func (u Update) Apply(r Records) {
	for _, o := range u.Operations {
		var left []netip.Addr
		for _, a := range r[o.Name] {
			gone := o.Kind == DeleteName || o.Kind == DeleteSet && a.Is4() == o.Address.Is4() || a == o.Address
			if !gone {
				left = append(left, a)
			}
		}
		if o.Kind == Add {
			left = append(left, o.Address)
		}
		slices.SortFunc(left, netip.Addr.Compare)
		if len(left) == 0 {
			delete(r, o.Name)
			continue
		}
		r[o.Name] = left
	}
}

// InZone tells whether a name is a zone's.
func InZone(name, zone string) bool {
	return name == zone || strings.HasSuffix(name, "."+zone)
}

// An Error is why an update is not taken, with the code of the answer.
type Error struct {
	Code   dnsmessage.RCode
	Reason string
}

func (e *Error) Error() string { return e.Reason }

func refuse(code dnsmessage.RCode, format string, a ...any) error {
	return &Error{code, fmt.Sprintf(format, a...)}
}

// Pack writes an update as a message.
func (u Update) Pack() ([]byte, error) {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: u.ID, OpCode: OpCode})
	b.EnableCompression()
	zone, err := dnsmessage.NewName(u.Zone + ".")
	if err != nil {
		return nil, fmt.Errorf("zone %q: %w", u.Zone, err)
	}
	// The zone, prerequisite, update and additional sections stand where others have questions, answers, authorities and additionals.
	err = errors.Join(b.StartQuestions(), b.Question(dnsmessage.Question{Name: zone, Type: dnsmessage.TypeSOA, Class: dnsmessage.ClassINET}),
		b.StartAnswers(), b.StartAuthorities())
	for _, o := range u.Operations {
		if err == nil {
			err = o.pack(&b)
		}
	}
	if err != nil {
		return nil, err
	}
	return b.Finish()
}

func (o Operation) pack(b *dnsmessage.Builder) error {
	name, err := dnsmessage.NewName(o.Name + ".")
	if err != nil {
		return fmt.Errorf("name %q: %w", o.Name, err)
	}
	h := dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: o.TTL}
	body := dnsmessage.UnknownResource{Type: typeOf(o.Address), Data: o.Address.AsSlice()}
	switch o.Kind {
	case Delete:
		h.Class, h.TTL = classNone, 0
	case DeleteSet:
		h.Class, h.TTL, body.Data = classAny, 0, nil
	case DeleteName:
		h.Class, h.TTL, body = classAny, 0, dnsmessage.UnknownResource{Type: typeAny}
	}
	if err := b.UnknownResource(h, body); err != nil {
		return fmt.Errorf("name %q: %w", o.Name, err)
	}
	return nil
}

func typeOf(a netip.Addr) dnsmessage.Type {
	if a.Is4() {
		return dnsmessage.TypeA
	}
	return dnsmessage.TypeAAAA
}

// Parse reads an update. Its errors are *Error: prerequisites, and records of other types than addresses, are answered with NOTIMP (RFC 2136, 2.2).
func Parse(msg []byte) (Update, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response || h.OpCode != OpCode {
		return Update{}, refuse(FormatError, "not an update")
	}
	zones, err := p.AllQuestions()
	if err != nil || len(zones) != 1 || zones[0].Type != dnsmessage.TypeSOA || zones[0].Class != dnsmessage.ClassINET {
		return Update{}, refuse(FormatError, "an update names one zone (type SOA, class IN)")
	}
	u := Update{ID: h.ID, Zone: plain(zones[0].Name)}
	switch _, err := p.AnswerHeader(); {
	case err == nil:
		return u, refuse(NotImplemented, "prerequisites are not understood here")
	case !errors.Is(err, dnsmessage.ErrSectionDone):
		return u, refuse(FormatError, "prerequisites: %v", err)
	}
	for {
		r, err := p.AuthorityHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return u, nil
		}
		if err != nil {
			return u, refuse(FormatError, "updates: %v", err)
		}
		body, err := p.UnknownResource()
		if err != nil {
			return u, refuse(FormatError, "updates: %v", err)
		}
		o, err := operation(r, body.Data)
		if err != nil {
			return u, err
		}
		if !InZone(o.Name, u.Zone) {
			return u, refuse(NotZone, "%s is not in zone %s", o.Name, u.Zone)
		}
		u.Operations = append(u.Operations, o)
	}
}

// operation reads a record of the update section (RFC 2136, 3.4.1.2).
func operation(h dnsmessage.ResourceHeader, data []byte) (Operation, error) {
	o := Operation{Name: plain(h.Name)}
	if !isHostName(o.Name) {
		return o, refuse(FormatError, "%q is no host's name", o.Name)
	}
	if h.Type == typeAny && h.Class == classAny && len(data) == 0 {
		o.Kind = DeleteName
		return o, nil
	}
	size := map[dnsmessage.Type]int{dnsmessage.TypeA: 4, dnsmessage.TypeAAAA: 16}[h.Type]
	if size == 0 {
		return o, refuse(NotImplemented, "%s: records of type %d are not understood here", o.Name, h.Type)
	}
	if h.Class == classAny && len(data) == 0 {
		o.Kind, o.Address = DeleteSet, unspecified(size)
		return o, nil
	}
	address, ok := netip.AddrFromSlice(data)
	if !ok || len(data) != size {
		return o, refuse(FormatError, "%s: an address of %d octets", o.Name, len(data))
	}
	o.Address = address
	switch h.Class {
	case dnsmessage.ClassINET:
		o.Kind, o.TTL = Add, h.TTL
	case classNone:
		o.Kind = Delete
	default:
		return o, refuse(FormatError, "%s: class %d", o.Name, h.Class)
	}
	return o, nil
}

// isHostName tells whether a name is made of what host names are made of, and perhaps a wildcard: nothing that a file or a log takes for
// something else.
func isHostName(name string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	name = strings.TrimPrefix(name, "*.")
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(letters, r) })
}

func unspecified(size int) netip.Addr {
	if size == 4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func plain(n dnsmessage.Name) string { return strings.ToLower(strings.TrimSuffix(n.String(), ".")) }

// Answer is the reply to an update: its header with a code. It is nil for a message too short to have one.
func Answer(msg []byte, code dnsmessage.RCode) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil {
		return nil
	}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode, RCode: code})
	answer, err := b.Finish()
	if err != nil {
		return nil
	}
	return answer
}

// CheckAnswer reads the reply to a message of this ID.
func CheckAnswer(id uint16, msg []byte) error {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	switch {
	case err != nil:
		return fmt.Errorf("answer: %w", err)
	case !h.Response || h.ID != id:
		return fmt.Errorf("answer to something else")
	case h.RCode != OK:
		return fmt.Errorf("the name server answers %v", h.RCode)
	}
	return nil
}
