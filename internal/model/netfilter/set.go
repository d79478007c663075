package netfilter

// Value is the content of one field as a number in network byte order, right-aligned in 128 bits: an address, a port, a mark. Names of
// interfaces are left-aligned bytes padded with zeros, as the kernel compares them.
type Value struct{ Hi, Lo uint64 }

// Compare orders values as numbers: -1, 0 or +1.
func (v Value) Compare(w Value) int {
	switch {
	case v == w:
		return 0
	case v.Hi < w.Hi || v.Hi == w.Hi && v.Lo < w.Lo:
		return -1
	}
	return 1
}

// Span is a field's content where it need not be certain: anything from Low to High. A certain one has them equal.
type Span struct{ Low, High Value }

// Certain reports whether there is just one value.
func (s Span) Certain() bool { return s.Low == s.High }

// Set is a set or map of nft, or a set of ipset(8).
//
// A key of an ipset has one field for each part of its kind ("hash:net,port" …), except that "port" is two, the protocol and the port (for
// ICMP and ICMPv6 type<<8|code; 0 for other protocols without ports), but in "bitmap:port" one.
type Set struct {
	Name     string
	Kind     string   // ipset's type, "hash:net,port"; "" for nft sets
	Fields   []string // type of each field: nft's names ("ipv4_addr", "inet_service", "ifname", …)
	Elements []Element
	// Masks are the bits of each field of the packet that count, for ipsets with a netmask, bitmask or markmask; nil for all.
	Masks []Value
	setIndex
}

// Element is one element of a set; Data is what a map gives for it. An element without Key is nft's "*", which stands for every key that
// no other element holds.
type Element struct {
	Key     []Span // one for each field
	NoMatch bool   // ipset: an exception to a wider element
	Set     string // list:set: the member set, instead of Key
	// Unsure marks an element that may hold less than Key says ("physdev:" of hash:net,iface): whether a packet meets it is unknown.
	Unsure  bool
	Data    Data
	Comment string
}

// Data is what a map gives: values (of which translations may need several), or a verdict.
type Data struct {
	Values  []Span
	Verdict *Verdict
	Words   string // as the rule set has it: "goto endpoint-1", "10.0.0.1 . 80"
}
