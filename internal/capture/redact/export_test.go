package redact

import (
	"net/netip"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/attribution"
)

// Redaction is what a redaction does to single addresses and names, for tests that compare before and after.
type Redaction struct{ r *redactor }

// RedactionOf returns the redaction that Capture does with the key.
func RedactionOf(o capture.Origin, book *attribution.Book, key []byte) (Redaction, error) {
	r, err := learn(o, book, key)
	return Redaction{r}, err
}

func (x Redaction) Addr(a netip.Addr) netip.Addr { return x.r.addresses.addr(a) }
func (x Redaction) Host(name string) string      { return x.r.names.host(name) }
func (x Redaction) Link(name string) string      { return x.r.names.link(name) }
func (x Redaction) Text(s string) string         { return x.r.addresses.text(s) }
func (x Redaction) Comment(s string) string      { return x.r.comment(s) }
func (x Redaction) Chain(name string) string     { return x.r.names.chain(name) }
func (x Redaction) Set(name string) string       { return x.r.names.set(name) }
func (x Redaction) Table(name string) string     { return x.r.names.table(name) }
func (x Redaction) Counter(name string) string   { return x.r.option("nfacct", "nfacct-name", 0, name) }
