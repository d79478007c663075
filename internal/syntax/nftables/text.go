package nftables

import (
	"fmt"
	"strconv"
	"strings"
)

// ruleText returns a rule as "nft list ruleset" prints it. What is not known is printed as JSON.
func ruleText(rule *Node) string {
	var b strings.Builder
	b.Grow(128) // most are shorter
	statements := rule.Get("expr").list()
	for i := range statements {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(statementText(&statements[i]))
	}
	if comment := rule.text("comment"); comment != "" {
		b.WriteString(" comment " + quoted(comment))
	}
	return b.String()
}

func quoted(s string) string { return `"` + s + `"` }

// texts returns those of the items of a list.
func texts(n *Node) []string {
	var all []string
	for _, item := range n.list() {
		all = append(all, item.Text)
	}
	return all
}

// join puts words that are not empty beside each other.
func join(words ...string) string {
	kept := words[:0]
	for _, w := range words {
		if w != "" {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, " ")
}

func matchText(n *Node) string {
	left, right, op := n.Get("left"), n.Get("right"), n.text("op")
	if left == nil || right == nil {
		return n.String()
	}
	datatype := ""
	types := typesOf(left)
	if len(types) == 1 {
		datatype = types[0]
	}
	shown := op
	if op == "==" || op == "in" {
		shown = ""
	}
	if name, inner, ok := left.singleMember(); ok && name == "&" && len(inner.elements()) == 2 {
		isFlags := datatype == "tcp_flag" || datatype == "ct_state" || datatype == "ct_status"
		if isFlags && inner.elements()[1].Get("|") == nil { // newer versions, whose JSON has "|", print an expression
			return join(exprText(&inner.elements()[0], ""), shown, flagsText(right)+" / "+flagsText(&inner.elements()[1]))
		}
		shown = op
	}
	if right.Get("set") != nil || right.Kind == String && strings.HasPrefix(right.Text, "@") {
		return join(exprText(left, ""), shown, setText(right, types, nil))
	}
	return join(exprText(left, ""), shown, elementText(right, types))
}

func flagsText(n *Node) string {
	var names []string
	for _, item := range n.list() {
		names = append(names, exprText(&item, "tcp_flag"))
	}
	return strings.Join(names, ",")
}

// elementText prints a constant of some datatypes, an element of a set.
func elementText(n *Node, types []string) string {
	if name, inner, ok := n.singleMember(); ok {
		switch name {
		case "concat":
			return concatText(inner, types)
		case "elem":
			return annotatedText(inner, types)
		}
	}
	if len(types) == 1 {
		return exprText(n, types[0])
	}
	return exprText(n, "")
}

// concatText prints values beside each other, of these datatypes as far as they are known.
func concatText(n *Node, types []string) string {
	parts := make([]string, len(n.elements()))
	for i := range parts {
		datatype := ""
		if i < len(types) {
			datatype = types[i]
		}
		parts[i] = exprText(&n.elements()[i], datatype)
	}
	return strings.Join(parts, " . ")
}

// annotatedText prints an element with its timeout and comment.
func annotatedText(n *Node, types []string) string {
	v := n.Get("val")
	if v == nil {
		return n.String()
	}
	text := elementText(v, types)
	if types == nil {
		text = exprText(v, "")
	}
	for _, option := range []string{"timeout", "expires"} {
		if seconds := n.number(option); seconds > 0 {
			text += " " + option + " " + secondsText(seconds)
		}
	}
	if comment := n.text("comment"); comment != "" {
		text += " comment " + quoted(comment)
	}
	return text
}

// secondsText prints a duration as nft does: "1d2h3m4s".
func secondsText(n uint64) string {
	var b strings.Builder
	for _, unit := range []struct {
		size uint64
		name string
	}{{86400, "d"}, {3600, "h"}, {60, "m"}, {1, "s"}} {
		if n >= unit.size {
			fmt.Fprintf(&b, "%d%s", n/unit.size, unit.name)
			n %= unit.size
		}
	}
	return b.String()
}

// setText prints a set that an expression names or holds, of a map with what it gives.
func setText(n *Node, key, data []string) string {
	elements := n.Get("set")
	if elements == nil {
		return exprText(n, "")
	}
	items := elements.list()
	if len(items) == 0 {
		return "{ }"
	}
	texts := make([]string, len(items))
	for i := range items {
		if pair := &items[i]; pair.Kind == Array && len(pair.elements()) == 2 {
			texts[i] = elementText(&pair.elements()[0], key) + " : " + dataText(&pair.elements()[1], data)
		} else {
			texts[i] = elementText(pair, key)
		}
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}

// dataText prints what a map gives.
func dataText(n *Node, types []string) string {
	if name, inner, ok := n.singleMember(); ok {
		if _, is := verdicts[name]; is {
			return join(name, inner.text("target"))
		}
	}
	return elementText(n, types)
}

func mapText(word string, n *Node, data []string) string {
	key, of := n.Get("key"), n.Get("data")
	if key == nil || of == nil {
		return n.String()
	}
	return exprText(key, "") + " " + word + " " + setText(of, typesOf(key), data)
}

// unqualified are the keys of meta that nft prints without the word.
var unqualified = map[string]bool{"iif": true, "iifname": true, "iifgroup": true, "oif": true, "oifname": true, "oifgroup": true}

// exprText prints an expression; the datatype is that of constants in it.
func exprText(n *Node, datatype string) string {
	switch n.Kind {
	case Number, String:
		return constantText(n, datatype)
	case Bool:
		return map[string]string{"true": "exists", "false": "missing"}[n.Text]
	case Array:
		var names []string
		for i := range n.elements() {
			names = append(names, exprText(&n.elements()[i], datatype))
		}
		return strings.Join(names, ",")
	}
	name, inner, ok := n.singleMember()
	if !ok {
		return n.String()
	}
	switch name {
	case "payload":
		return payloadText(inner)
	case "meta":
		if key := inner.text("key"); unqualified[key] {
			return key
		}
		return "meta " + inner.text("key")
	case "ct":
		return join("ct", inner.text("dir"), inner.text("key"))
	case "rt":
		return join("rt", inner.text("family"), inner.text("key"))
	case "socket":
		return "socket " + inner.text("key")
	case "fib":
		return fibText(inner)
	case "numgen", "jhash", "symhash":
		return generatedText(name, inner)
	case "concat":
		return concatText(inner, nil)
	case "prefix":
		if a := inner.Get("addr"); a != nil {
			return exprText(a, datatype) + "/" + inner.text("len")
		}
	case "range":
		if len(inner.elements()) == 2 {
			return exprText(&inner.elements()[0], datatype) + "-" + exprText(&inner.elements()[1], datatype)
		}
	case "&", "|", "^", "<<", ">>":
		return bitwiseText(name, inner)
	case "map":
		return mapText("map", inner, typesFor(datatype))
	case "elem":
		return annotatedText(inner, typesFor(datatype))
	case "set":
		return setText(n, typesFor(datatype), nil)
	case "tcp option":
		return join("tcp option", inner.text("name"), inner.text("field"))
	}
	return n.String()
}

func typesFor(datatype string) []string {
	if datatype == "" {
		return nil
	}
	return []string{datatype}
}

func constantText(n *Node, datatype string) string {
	switch datatype {
	case "mark":
		if v, err := strconv.ParseUint(n.Text, 10, 32); err == nil {
			return fmt.Sprintf("0x%08x", v)
		}
	case "ifname", "string", "day", "hour", "time":
		return quoted(n.Text)
	case "duration":
		if v, err := strconv.ParseUint(n.Text, 10, 64); err == nil && v > 0 {
			return secondsText(v)
		}
	case "iface_index":
		if _, err := strconv.Atoi(n.Text); err != nil {
			return quoted(n.Text)
		}
	}
	return n.Text
}

func payloadText(n *Node) string {
	if base := n.text("base"); base != "" {
		return "@" + base + "," + n.text("offset") + "," + n.text("len")
	}
	return n.text("protocol") + " " + n.text("field")
}

func fibText(n *Node) string {
	return "fib " + strings.Join(texts(n.Get("flags")), " . ") + " " + n.text("result")
}

func generatedText(name string, n *Node) string {
	words := []string{name, n.text("mode")}
	if e := n.Get("expr"); e != nil {
		words = append(words, exprText(e, ""))
	}
	words = append(words, "mod "+n.text("mod"))
	if seed := n.number("seed"); seed != 0 {
		words = append(words, fmt.Sprintf("seed %#x", seed))
	}
	if offset := n.number("offset"); offset != 0 {
		words = append(words, "offset "+n.text("offset"))
	}
	return join(words...)
}

func bitwiseText(op string, n *Node) string {
	if len(n.elements()) < 2 {
		return n.String()
	}
	datatype := ""
	if types := typesOf(&n.elements()[0]); len(types) == 1 && op != "<<" && op != ">>" {
		datatype = types[0]
	}
	parts := make([]string, len(n.elements()))
	for i := range n.elements() {
		parts[i] = exprText(&n.elements()[i], datatype)
		if op == "&" && n.elements()[i].Get("|") != nil {
			parts[i] = "(" + parts[i] + ")"
		}
	}
	return strings.Join(parts, " "+op+" ")
}
