package netfilter

import (
	"math/bits"
	"slices"
	"sync"
)

// Found reports whether a set holds a key.
type Found uint8

// The answers. Uncertain keys can lie on both sides of an element's border.
const (
	NotFound Found = iota
	IsFound
	CannotTell
)

// Lookup finds the element that holds a key of one span for each of the set's fields. Where several do, it is the most specific one, the
// first field counting most, as ipset tries prefixes (mtype_test_cidrs in net/netfilter/ipset/ip_set_hash_gen.h); elements of nft sets do
// not overlap. The element is nil unless it is found. An exception (NoMatch) is found as an element; what it means is the caller's.
//
// The index is made by the first look-up, and the set must not change after it. Look-ups may run at the same time.
func (s *Set) Lookup(key []Span) (*Element, Found) {
	s.once.Do(s.build)
	certain := true
	for i := range key {
		certain = certain && key[i].Certain()
	}
	var i int32
	var found Found
	switch {
	case s.nets != nil:
		i, found = s.findOnNet(key)
	case certain:
		i, found = s.find(key)
	default:
		i, found = s.search(key)
	}
	switch {
	case found == CannotTell:
		return nil, CannotTell
	case found == IsFound && s.Elements[i].Unsure:
		return nil, CannotTell
	case found == IsFound:
		return &s.Elements[i], IsFound
	case s.fallback != nil && s.fallback.Unsure:
		return nil, CannotTell
	case s.fallback != nil:
		return s.fallback, IsFound
	}
	return nil, NotFound
}

// setIndex is what makes look-ups fast. Every span is a few prefixes, and so every element a few combinations of prefixes; those of the
// same lengths share a table of hashes ("tuple space search"). Few sets have more than a handful of combinations of lengths.
type setIndex struct {
	once     sync.Once
	tables   []setTable // most specific first
	wide     []int32    // elements that would be too many prefixes
	fallback *Element
	nets     map[piece]bool // of hash:net,iface: every network
}

// maxPieces bounds the combinations of prefixes of one element.
const maxPieces = 4096

// setTable holds the combinations of prefixes with the same masks.
type setTable struct {
	masks   []Value // one for each field
	first   map[uint64]int32
	entries []setEntry
	values  []Value // of every entry, one after the other
}

// setEntry is one combination; entries with the same hash are a list that ends with -1.
type setEntry struct{ element, next int32 }

// piece is a prefix.
type piece struct{ value, mask Value }

func (s *Set) build() {
	tables := map[string]*setTable{}
	var name []byte
	for i := range s.Elements {
		e := &s.Elements[i]
		if len(e.Key) == 0 {
			if e.Set == "" {
				s.fallback = e
			}
			continue
		}
		fields, total := make([][]piece, len(e.Key)), 1
		for f, span := range e.Key {
			fields[f] = pieces(span)
			total = min(total*len(fields[f]), maxPieces+1)
		}
		if total > maxPieces {
			s.wide = append(s.wide, int32(i))
			continue
		}
		combine(fields, func(combination []piece) {
			name = name[:0]
			for _, p := range combination {
				name = append(name, byte(countBits(p.mask)))
			}
			t := tables[string(name)]
			if t == nil {
				t = &setTable{first: map[uint64]int32{}}
				for _, p := range combination {
					t.masks = append(t.masks, p.mask)
				}
				tables[string(name)] = t
			}
			t.add(int32(i), combination)
			if s.Kind == "hash:net,iface" {
				if s.nets == nil {
					s.nets = map[piece]bool{}
				}
				s.nets[combination[0]] = true
			}
		})
	}
	for _, t := range tables {
		s.tables = append(s.tables, *t)
	}
	slices.SortFunc(s.tables, func(a, b setTable) int {
		return slices.CompareFunc(a.masks, b.masks, func(v, w Value) int { return w.Compare(v) })
	})
}

// combine calls f for every combination of one piece of each field. The slice is used again.
func combine(fields [][]piece, f func([]piece)) {
	combination := make([]piece, len(fields))
	var next func(i int)
	next = func(i int) {
		if i == len(fields) {
			f(combination)
			return
		}
		for _, p := range fields[i] {
			combination[i] = p
			next(i + 1)
		}
	}
	next(0)
}

func (t *setTable) add(element int32, combination []piece) {
	h := uint64(hashSeed)
	for _, p := range combination {
		t.values = append(t.values, p.value)
		h = hashValue(h, p.value)
	}
	next := int32(-1)
	if first, ok := t.first[h]; ok {
		next = first
	}
	t.first[h] = int32(len(t.entries))
	t.entries = append(t.entries, setEntry{element, next})
}

const hashSeed = 0x9e3779b97f4a7c15

// hashValue mixes a value into a hash.
func hashValue(h uint64, v Value) uint64 {
	hi, lo := bits.Mul64(h^v.Lo, 0xa0761d6478bd642f)
	h = hi ^ lo
	hi, lo = bits.Mul64(h^v.Hi, 0xe7037ed1a0b428db)
	return hi ^ lo ^ hashSeed
}

// find looks a certain key up.
func (s *Set) find(key []Span) (int32, Found) {
	for i := range s.tables {
		if e := s.tables[i].find(key); e >= 0 {
			return e, IsFound
		}
	}
	for _, i := range s.wide {
		if overlap(s.Elements[i].Key, key) == yes {
			return i, IsFound
		}
	}
	return 0, NotFound
}

func (t *setTable) find(key []Span) int32 {
	if len(key) != len(t.masks) {
		return -1
	}
	h := uint64(hashSeed)
	for i, m := range t.masks {
		h = hashValue(h, key[i].Low.and(m))
	}
	i, ok := t.first[h]
	if !ok {
		return -1
	}
	for ; i >= 0; i = t.entries[i].next {
		if t.holds(i, key) {
			return t.entries[i].element
		}
	}
	return -1
}

func (t *setTable) holds(i int32, key []Span) bool {
	values := t.values[int(i)*len(t.masks):]
	for f, m := range t.masks {
		if key[f].Low.and(m) != values[f] {
			return false
		}
	}
	return true
}

// findOnNet looks a key up in a set of type hash:net,iface. There only the most specific network that holds the address counts, whatever
// interfaces its elements have (hash_netiface4_data_equal in net/netfilter/ipset/ip_set_hash_netiface.c counts it before it compares them).
func (s *Set) findOnNet(key []Span) (int32, Found) {
	if !key[0].Certain() {
		if _, found := s.search(key); found == NotFound {
			return 0, NotFound
		}
		return 0, CannotTell
	}
	for i := range s.tables {
		net := piece{key[0].Low.and(s.tables[i].masks[0]), s.tables[i].masks[0]}
		if !s.nets[net] {
			continue
		}
		only := Set{setIndex: setIndex{tables: s.tablesOf(i)}, Elements: s.Elements}
		if key[1].Certain() {
			return only.find(key)
		}
		return only.search(key)
	}
	return 0, NotFound
}

// tablesOf returns the tables from i on with the same first mask.
func (s *Set) tablesOf(i int) []setTable {
	end := i
	for end < len(s.tables) && s.tables[end].masks[0] == s.tables[i].masks[0] {
		end++
	}
	return s.tables[i:end]
}

// search looks an uncertain key up: element by element, the most specific first. The first one that it may lie in decides.
func (s *Set) search(key []Span) (int32, Found) {
	for t := range s.tables {
		for _, entry := range s.tables[t].entries {
			switch overlap(s.Elements[entry.element].Key, key) {
			case yes:
				return entry.element, IsFound
			case maybe:
				return 0, CannotTell
			}
		}
	}
	for _, i := range s.wide {
		switch overlap(s.Elements[i].Key, key) {
		case yes:
			return i, IsFound
		case maybe:
			return 0, CannotTell
		}
	}
	return 0, NotFound
}

// overlap reports whether a key lies in an element's: maybe where it partly does.
func overlap(element, key []Span) truth {
	if len(element) != len(key) {
		return no
	}
	holds := yes
	for i := range key {
		holds = holds.and(key[i].within(element[i]))
		if holds == no {
			return no
		}
	}
	return holds
}

// within reports whether a span lies in another: maybe where it partly does.
func (s Span) within(t Span) truth {
	switch {
	case t.Low.Compare(s.Low) <= 0 && s.High.Compare(t.High) <= 0:
		return yes
	case s.High.Compare(t.Low) < 0 || t.High.Compare(s.Low) < 0:
		return no
	}
	return maybe
}

// Exactly returns the span of one value.
func Exactly(v Value) Span { return Span{v, v} }

// Number returns the span of one number.
func Number(n uint64) Span { return Exactly(Value{Lo: n}) }

// Wildcard returns the span of the values that have the bits of v under the mask of a prefix.
func Wildcard(v, mask Value) Span { return Span{v.and(mask), v.or(mask.not())} }

func (v Value) or(w Value) Value { return Value{v.Hi | w.Hi, v.Lo | w.Lo} }

func (v Value) xor(w Value) Value { return Value{v.Hi ^ w.Hi, v.Lo ^ w.Lo} }

func (v Value) not() Value { return Value{^v.Hi, ^v.Lo} }

// countBits counts the bits that are set.
func countBits(v Value) int { return bits.OnesCount64(v.Hi) + bits.OnesCount64(v.Lo) }

// trailingZeros counts the zeros below the lowest bit that is set: 128 for zero.
func (v Value) trailingZeros() int {
	if v.Lo != 0 {
		return bits.TrailingZeros64(v.Lo)
	}
	return 64 + bits.TrailingZeros64(v.Hi)
}

// plus adds, modulo 2^128.
func (v Value) plus(w Value) Value {
	lo, carry := bits.Add64(v.Lo, w.Lo, 0)
	hi, _ := bits.Add64(v.Hi, w.Hi, carry)
	return Value{hi, lo}
}

// lowBits returns the mask of the n lowest bits.
func lowBits(n int) Value {
	switch {
	case n >= 128:
		return AllOnes
	case n >= 64:
		return Value{Hi: 1<<(n-64) - 1, Lo: ^uint64(0)}
	}
	return Value{Lo: 1<<n - 1}
}

// pieces splits a span into the fewest prefixes, none where it holds nothing.
func pieces(s Span) []piece {
	var list []piece
	low := s.Low
	for low.Compare(s.High) <= 0 {
		n := low.trailingZeros()
		for n > 0 && low.or(lowBits(n)).Compare(s.High) > 0 {
			n--
		}
		list = append(list, piece{low, lowBits(n).not()})
		last := low.or(lowBits(n))
		if last == AllOnes {
			break
		}
		low = last.plus(Value{Lo: 1})
	}
	return list
}
