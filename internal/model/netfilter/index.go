package netfilter

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"packetwalk.dev/internal/model/packet"
)

// Key names a field of the packet, of which the mask's bits count.
type Key struct {
	Field KeyField
	Mask  Value
}

// KeyField is a field that chains can be indexed by.
type KeyField uint8

// The fields.
const (
	KeySource KeyField = iota
	KeyDestination
	KeySourcePort
	KeyDestinationPort
	KeyProtocol
	KeyIn
	KeyOut
	KeyMark
	KeyEtherSource
	KeyEtherDestination
)

// AllOnes is the mask under which every bit of a value counts.
var AllOnes = Value{^uint64(0), ^uint64(0)}

func (v Value) and(w Value) Value { return Value{v.Hi & w.Hi, v.Lo & w.Lo} }

// AddressValue returns an address as a Value; addresses of IPv4 fill the lower 32 bits.
func AddressValue(a netip.Addr) Value {
	if a.Is4() {
		b := a.As4()
		return Value{Lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return Value{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// PrefixMask returns the mask of a prefix of so many bits of an address of the family.
func PrefixMask(bits int, ipv6 bool) Value {
	if !ipv6 {
		return Value{Lo: uint64(^uint32(0) << (32 - bits))}
	}
	if bits <= 64 {
		return Value{Hi: ^uint64(0) << (64 - bits)}
	}
	return Value{Hi: ^uint64(0), Lo: ^uint64(0) << (128 - bits)}
}

// NameValue returns an interface's name as a Value: its bytes from the left, padded with zeros (kernel: IFNAMSIZ).
func NameValue(name string) Value {
	var b [16]byte
	copy(b[:15], name)
	return Value{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// MACValue returns a link-layer address as a Value.
func MACValue(m packet.MAC) Value {
	var b [8]byte
	copy(b[2:], m[:])
	return Value{Lo: binary.BigEndian.Uint64(b[:])}
}

// value returns the field's content, or false where it is not certain.
func (f KeyField) value(c *Context) (Value, bool) {
	p := c.Packet
	switch f {
	case KeySource:
		return AddressValue(p.Source), !packet.IsUnknown(p.Source)
	case KeyDestination:
		return AddressValue(p.Destination), !packet.IsUnknown(p.Destination)
	case KeySourcePort:
		return Value{Lo: uint64(p.SourcePort.Number)}, p.SourcePort.Known()
	case KeyDestinationPort:
		return Value{Lo: uint64(p.DestinationPort.Number)}, p.DestinationPort.Known()
	case KeyProtocol:
		return Value{Lo: uint64(p.Protocol)}, true
	case KeyIn:
		return NameValue(p.In), !c.inUnknown()
	case KeyOut:
		return NameValue(p.Out), !c.outUnknown()
	case KeyMark:
		return Value{Lo: uint64(p.Mark)}, true
	case KeyEtherSource:
		return MACValue(p.Frame.Source), !p.Frame.Source.IsZero()
	case KeyEtherDestination:
		return MACValue(p.Frame.Destination), !p.Frame.Destination.IsZero()
	}
	return Value{}, false
}

// Index makes what evaluation needs: the order of base chains at each hook, and the index of each chain. It has to be called once, when
// the ruleset is complete and before chains run; a ruleset does not change after it, so that many walks can use it at the same time.
func (rs *Ruleset) Index() {
	rs.hooks = map[hookKey][]*Chain{}
	for _, t := range slices.Backward(rs.Tables) {
		rs.noteTracking(t)
		for _, c := range slices.Backward(t.Chains) {
			c.index = makeIndex(c)
			families := []Family{t.Family}
			if t.Family == Inet {
				families = []Family{IPv4, IPv6, Inet}
			}
			if c.Base == nil {
				continue
			}
			for _, f := range families {
				key := hookKey{f, c.Base.Hook}
				rs.hooks[key] = append(rs.hooks[key], c)
			}
		}
	}
	for _, chains := range rs.hooks {
		slices.SortStableFunc(chains, func(a, b *Chain) int { return a.Base.Priority - b.Base.Priority })
	}
}

// Hook lists the base chains that a packet of a family meets at a hook, in the order in which the kernel calls them. IPv4 and IPv6 packets
// meet those of Inet tables too. Index must have been called.
func (rs *Ruleset) Hook(f Family, h Hook) []*Chain { return rs.hooks[hookKey{f, h}] }

// Table finds a table; nil where there is none. Where legacy and nft tables have the same name, it is the first.
func (rs *Ruleset) Table(f Family, name string) *Table {
	for _, t := range rs.Tables {
		if t.Family == f && t.Name == name {
			return t
		}
	}
	return nil
}

// Chain finds a chain; nil where there is none.
func (t *Table) Chain(name string) *Chain {
	for _, c := range t.Chains {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// minIndexed is the number of rules below which they are walked plainly.
const minIndexed = 8

// index is what makes the evaluation of one chain fast.
type index struct {
	shapes []shape // of each rule
	root   *node   // nil where the rules are walked plainly
}

// shape is what evaluation needs to know of a rule before it starts.
type shape struct {
	tests    uint8 // statements in front of the first effect, as far as they go into the number
	inert    bool  // no effect does anything that a walk sees
	modifies bool
}

func shapeOf(r *Rule) shape {
	s := shape{inert: true}
	leading := true
	for i, statement := range r.Statements {
		effect, ok := statement.(Effect)
		switch {
		case !ok && leading && i < 255:
			s.tests = uint8(i + 1)
			continue
		case !ok:
			continue
		}
		leading = false
		switch effect.Effect() {
		case Modifies:
			s.inert, s.modifies = false, true
		case Decides:
			s.inert = false
		}
	}
	return s
}

// node is a step of the search for the rules that can apply: those that test key are found by its value, the others are in rest. A leaf has
// only rules.
type node struct {
	rules   []int32 // all of the node, in order
	key     Key
	buckets map[Value]*node // nil in a leaf
	rest    *node
}

// condition is one Keyed test of a rule.
type condition struct {
	key    Key
	values []Value
}

func makeIndex(c *Chain) index {
	x := index{shapes: make([]shape, len(c.Rules))}
	for i := range c.Rules {
		x.shapes[i] = shapeOf(&c.Rules[i])
	}
	if len(c.Rules) < minIndexed {
		return x
	}
	conditions := make([][]condition, len(c.Rules))
	rules := make([]int32, len(c.Rules))
	for i := range c.Rules {
		rules[i] = int32(i)
		for _, statement := range c.Rules[i].Statements[:x.shapes[i].tests] {
			if keyed, ok := statement.(KeyedTest); ok {
				if key, values, ok := keyed.Key(); ok {
					conditions[i] = append(conditions[i], condition{key, values})
				}
			}
		}
	}
	b := indexBuilder{conditions}
	if root := b.node(rules, nil); root.buckets != nil {
		x.root = root
	}
	return x
}

type indexBuilder struct {
	conditions [][]condition // of each rule
}

// node makes the node for some rules of the chain. The keys used above it are of no more use.
func (b *indexBuilder) node(rules []int32, used []Key) *node {
	n := &node{rules: rules}
	if len(rules) < minIndexed {
		return n
	}
	key, count := b.bestKey(rules, used)
	if count < minIndexed/2 {
		return n
	}
	n.key = key
	n.buckets = map[Value]*node{}
	lists := map[Value][]int32{}
	var rest []int32
	for _, r := range rules {
		values, ok := b.values(r, key)
		if !ok {
			rest = append(rest, r)
			continue
		}
		for _, v := range values {
			if list := lists[v]; len(list) == 0 || list[len(list)-1] != r {
				lists[v] = append(list, r)
			}
		}
	}
	used = append(used, key)
	for v, list := range lists {
		n.buckets[v] = b.node(list, used)
	}
	n.rest = b.node(rest, used)
	return n
}

// values returns those that a rule has for a key.
func (b *indexBuilder) values(r int32, key Key) ([]Value, bool) {
	for i := range b.conditions[r] {
		if b.conditions[r][i].key == key {
			return b.conditions[r][i].values, true
		}
	}
	return nil, false
}

// bestKey returns the key that most rules test, of those that distinguish rules, and how many test it.
func (b *indexBuilder) bestKey(rules []int32, used []Key) (best Key, count int) {
	type tally struct {
		rules  int
		first  Value
		varied bool
	}
	tallies := map[Key]*tally{}
	for _, r := range rules {
		for i := range b.conditions[r] {
			c := &b.conditions[r][i]
			if slices.Contains(used, c.key) {
				continue
			}
			t := tallies[c.key]
			if t == nil {
				t = &tally{}
				if len(c.values) > 0 {
					t.first = c.values[0]
				}
				tallies[c.key] = t
			}
			t.rules++
			t.varied = t.varied || len(c.values) != 1 || c.values[0] != t.first
		}
	}
	for key, t := range tallies {
		if t.varied && (t.rules > count || t.rules == count && lessKey(key, best)) {
			best, count = key, t.rules
		}
	}
	return best, count
}

// lessKey orders keys, so that equal counts give the same index every time.
func lessKey(a, b Key) bool {
	if a.Field != b.Field {
		return a.Field < b.Field
	}
	return a.Mask.Compare(b.Mask) > 0
}

// candidates appends the lists of rules that can apply to a packet.
func (n *node) candidates(c *Context, lists [][]int32) [][]int32 {
	for n.buckets != nil {
		v, known := n.key.Field.value(c)
		if !known {
			break
		}
		if b := n.buckets[v.and(n.key.Mask)]; b != nil {
			lists = b.candidates(c, lists)
		}
		n = n.rest
	}
	if len(n.rules) == 0 {
		return lists
	}
	return append(lists, n.rules)
}
