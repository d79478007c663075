package nftables

import (
	"strconv"

	"packetwalk.dev/internal/model/netfilter"
)

// typesOf returns the datatypes of an expression, one for each of its fields; nil where they are not known.
func typesOf(n *Node) []string {
	name, inner, ok := n.singleMember()
	if !ok {
		return nil
	}
	switch name {
	case "concat":
		var all []string
		for i := range inner.elements() {
			types := typesOf(&inner.elements()[i])
			if len(types) != 1 {
				return nil
			}
			all = append(all, types[0])
		}
		return all
	case "&", "|", "^", "<<", ">>":
		if len(inner.elements()) > 0 {
			return typesOf(&inner.elements()[0])
		}
		return nil
	case "elem":
		if v := inner.Get("val"); v != nil {
			return typesOf(v)
		}
		return nil
	case "numgen", "jhash", "symhash":
		return []string{"integer"}
	case "fib":
		return []string{fibType(inner)}
	}
	if f := field(n); f != nil {
		return []string{f.Type}
	}
	return nil
}

func fibType(n *Node) string {
	switch n.text("result") {
	case "type":
		return "fib_addrtype"
	case "oifname":
		return "ifname"
	}
	return "iface_index"
}

// field returns a field of the packet, or beside it; nil for everything else.
func field(n *Node) *netfilter.Field {
	name, inner, ok := n.singleMember()
	if !ok {
		return nil
	}
	var f *netfilter.Field
	switch name {
	case "payload":
		if f, ok = netfilter.Payload(inner.text("protocol"), inner.text("field")); ok {
			return f
		}
	case "meta":
		if f, ok = netfilter.Meta(inner.text("key")); ok {
			return f
		}
	case "ct":
		if f, ok = netfilter.Conntrack(inner.text("key"), inner.text("dir")); ok {
			return f
		}
	}
	return nil
}

// expr lowers an expression; what is not understood is a field that can have any value.
func (l *lowerer) expr(n *Node) netfilter.Expr {
	if e := l.known(n); e != nil {
		return e
	}
	return netfilter.UnknownField("not understood: "+exprText(n, ""), "", tracking(n))
}

// known lowers an expression; nil where it is not understood.
func (l *lowerer) known(n *Node) netfilter.Expr {
	if f := field(n); f != nil {
		return f
	}
	name, inner, ok := n.singleMember()
	if !ok {
		return nil
	}
	switch name {
	case "elem":
		if v := inner.Get("val"); v != nil {
			return l.known(v)
		}
	case "concat":
		all := make(netfilter.Concat, len(inner.elements()))
		for i := range inner.elements() {
			all[i] = l.expr(&inner.elements()[i])
		}
		return all
	case "&", "|", "^", "<<", ">>":
		return l.bitwise(name, inner)
	case "numgen", "jhash", "symhash":
		return l.generated(name, inner)
	case "fib":
		return lowerFIB(inner)
	case "map":
		return l.mapped(inner, nil)
	}
	return nil
}

func (l *lowerer) bitwise(op string, n *Node) netfilter.Expr {
	if len(n.elements()) < 2 {
		return nil
	}
	left := &n.elements()[0]
	e := l.expr(left)
	for i := range n.elements()[1:] {
		right := &n.elements()[1+i]
		e = &netfilter.Bitwise{Op: netfilter.BitOp(op), Left: e, Right: l.operand(right, typesOf(left))}
	}
	return e
}

// operand returns a constant of the datatypes, or an expression.
func (l *lowerer) operand(n *Node, types []string) netfilter.Expr {
	if len(types) == 0 {
		types = []string{"integer"}
	}
	if values, ok := spans(n, types); ok {
		return &netfilter.Constant{Values: values, Words: exprText(n, types[0])}
	}
	if name, inner, ok := n.singleMember(); ok && name == "map" {
		if m := l.mapped(inner, types); m != nil {
			return m
		}
	}
	return l.expr(n)
}

func (l *lowerer) generated(name string, n *Node) netfilter.Expr {
	mod := n.number("mod")
	offset := n.number("offset")
	if mod == 0 || mod > 1<<32-1 || offset > 1<<32-1 {
		return nil
	}
	g := &netfilter.GeneratedNumber{Kind: netfilter.Hash, Mod: uint32(mod), Offset: uint32(offset)}
	g.Words = generatedText(name, n)
	switch name {
	case "numgen":
		g.Kind = netfilter.Counter
		if n.text("mode") == "random" {
			g.Kind = netfilter.Random
		}
	case "jhash":
		over := n.Get("expr")
		if over == nil {
			return nil
		}
		g.Over = l.expr(over)
		seed, err := strconv.ParseUint(n.text("seed"), 10, 32)
		// Without a seed, and with 0, the kernel takes one at random.
		g.Seed, g.HasSeed = uint32(seed), err == nil && seed != 0
	}
	return g
}

func lowerFIB(n *Node) netfilter.Expr {
	f := &netfilter.FIB{Result: netfilter.FIBLink}
	switch n.text("result") {
	case "type":
		f.Result = netfilter.FIBType
	case "oif", "oifname":
	default:
		return nil
	}
	flags := n.Get("flags")
	for _, flag := range flags.list() {
		switch flag.Text {
		case "saddr":
			f.Source = true
		case "daddr":
		case "mark":
			f.Mark = true
		case "iif":
			f.In = true
		case "oif":
			f.Out = true
		default:
			return nil
		}
	}
	return f
}

// mapped lowers a map; types are those of what it gives, where the map itself does not say.
func (l *lowerer) mapped(n *Node, types []string) *netfilter.MapLookup {
	key, data := n.Get("key"), n.Get("data")
	if key == nil || data == nil {
		return nil
	}
	set := l.set(data, typesOf(key), types)
	if set == nil {
		return nil
	}
	return &netfilter.MapLookup{Key: l.expr(key), Set: set, Words: setText(data, typesOf(key), types)}
}
