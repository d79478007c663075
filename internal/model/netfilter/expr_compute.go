package netfilter

import (
	"fmt"
	"strconv"
	"strings"
)

// Constant is a value that stands in the rule.
type Constant struct {
	Values []Span
	Words  string
}

func (k *Constant) value(_ *Context, dst []Span) ([]Span, truth) {
	return append(dst, k.Values...), yes
}

func (k *Constant) String() string { return k.Words }

// Concat is several values side by side, the key of a set for example.
type Concat []Expr

func (k Concat) value(c *Context, dst []Span) ([]Span, truth) {
	holds := yes
	for _, e := range k {
		var t truth
		if dst, t = e.value(c, dst); t == no {
			return dst, no
		}
		holds = holds.and(t)
	}
	return dst, holds
}

func (k Concat) String() string {
	parts := make([]string, len(k))
	for i, e := range k {
		parts[i] = e.String()
	}
	return strings.Join(parts, ", ")
}

// BitOp is an operation on bits.
type BitOp string

// The operations, as nft writes them.
const (
	BitAnd   BitOp = "&"
	BitOr    BitOp = "|"
	BitXor   BitOp = "^"
	BitLeft  BitOp = "<<"
	BitRight BitOp = ">>"
)

// Bitwise computes with bits (net/netfilter/nft_bitwise.c). Marks and other numbers have 32 bits when they are shifted.
type Bitwise struct {
	Op          BitOp
	Left, Right Expr
}

func (b *Bitwise) String() string {
	return b.Left.String() + " " + string(b.Op) + " " + b.Right.String()
}

func (b *Bitwise) value(c *Context, dst []Span) ([]Span, truth) {
	n := len(dst)
	dst, t := b.Left.value(c, dst)
	if t == no || len(dst) != n+1 {
		return dst, no
	}
	dst, u := b.Right.value(c, dst)
	if u == no || len(dst) != n+2 {
		return dst, no
	}
	left, right := dst[n], dst[n+1]
	if f, ok := b.Left.(*Field); ok && b.Op == BitAnd && right.Certain() && right.Low.and(f.open) == (Value{}) {
		left.High = left.High.and(f.open.not())
	}
	return append(dst[:n], b.compute(left, right)), t.and(u)
}

// compute works bit by bit. Of an uncertain value only bits are known that the other side decides.
func (b *Bitwise) compute(left, right Span) Span {
	if !left.Certain() || !right.Certain() {
		return b.bounds(left, right)
	}
	v, w := left.Low, right.Low
	switch b.Op {
	case BitAnd:
		return Exactly(v.and(w))
	case BitOr:
		return Exactly(v.or(w))
	case BitXor:
		return Exactly(v.xor(w))
	case BitLeft:
		return Number(uint64(uint32(v.Lo) << min(w.Lo, 32)))
	case BitRight:
		return Number(uint64(uint32(v.Lo) >> min(w.Lo, 32)))
	}
	return Span{High: AllOnes}
}

// bounds returns the smallest and the largest number that can come out.
func (b *Bitwise) bounds(left, right Span) Span {
	most := left.High.or(right.High)
	all := lowBits(128 - leadingZeros(most))
	switch b.Op {
	case BitAnd:
		if right.Certain() {
			return Span{High: right.Low}
		}
		return Span{High: all}
	case BitOr:
		if right.Certain() {
			return Span{right.Low, all}
		}
		return Span{High: all}
	case BitXor:
		return Span{High: all}
	}
	return anything(32)
}

func leadingZeros(v Value) int {
	n := 128
	for ; v != (Value{}); n-- {
		v = Value{v.Hi >> 1, v.Lo>>1 | v.Hi<<63}
	}
	return n
}

// GeneratedNumber is a number that the kernel makes up: numgen, jhash, symhash. It lies in [Offset, Offset+Mod).
type GeneratedNumber struct {
	Kind   ChoiceKind // Random, Counter or Hash
	Mod    uint32
	Offset uint32
	// Over is what is hashed, with Seed where HasSeed (jhash); nil for the other kinds.
	Over    Expr
	Seed    uint32
	HasSeed bool
	Words   string
}

func (g *GeneratedNumber) String() string { return g.Words }

// maxListed bounds the answers that a choice of a number has one by one, by what a walk enumerates. Numbers out of more are not known.
const maxListed = 4096

func (g *GeneratedNumber) value(c *Context, dst []Span) ([]Span, truth) {
	what, hash, t := g.question(c)
	switch {
	case t == no:
		return append(dst, Span{}), no
	case hash != nil:
		return append(dst, *hash), t
	case g.Mod > maxListed:
		return append(dst, g.span()), t
	}
	options := make([]Option, g.Mod)
	for i := range options {
		options[i] = Option{Label: strconv.FormatUint(uint64(g.Offset)+uint64(i), 10), Weight: 1}
	}
	return append(dst, Number(uint64(g.Offset)+uint64(c.ask(g.Kind, draw{g, what}, options...)))), t
}

func (g *GeneratedNumber) span() Span {
	return Span{Value{Lo: uint64(g.Offset)}, Value{Lo: uint64(g.Offset) + uint64(max(g.Mod, 1)) - 1}}
}

// question returns what is asked, with the values that are hashed; or the hash, where everything that goes into it is known.
func (g *GeneratedNumber) question(c *Context) (what string, hash *Span, t truth) {
	if g.Mod == 1 {
		one := Number(uint64(g.Offset))
		return "", &one, yes
	}
	if g.Over == nil {
		return g.Words, nil, yes
	}
	spans, t := g.Over.value(c, nil)
	if t == no {
		return "", nil, no
	}
	if h, ok := g.hash(spans); ok && t == yes {
		n := Number(uint64(g.Offset) + uint64(h))
		return "", &n, yes
	}
	return g.Words + " of " + spansText(spans), nil, t
}

// spansText writes values as hexadecimal numbers, for questions that have to differ where values do.
func spansText(spans []Span) string {
	var b strings.Builder
	for i, s := range spans {
		if i > 0 {
			b.WriteString(" . ")
		}
		b.WriteString(s.String())
	}
	return b.String()
}

// String returns the span's bounds as hexadecimal numbers.
func (s Span) String() string {
	if s.Certain() {
		return s.Low.String()
	}
	return s.Low.String() + "-" + s.High.String()
}

// String returns the value as a hexadecimal number.
func (v Value) String() string {
	if v.Hi != 0 {
		return fmt.Sprintf("%#x%016x", v.Hi, v.Lo)
	}
	return fmt.Sprintf("%#x", v.Lo)
}
