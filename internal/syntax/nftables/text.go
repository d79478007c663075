package nftables

import (
	"fmt"
	"strconv"
	"strings"
)

// Text is a rule as "nft list ruleset" prints it. What is not known is printed as JSON.
func Text(rule *Node) string {
	var b strings.Builder
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

// statementTexts print the statements that have forms of their own.
var statementTexts map[string]func(n *Node) string

func init() {
	statementTexts = map[string]func(n *Node) string{
		"match":      matchText,
		"vmap":       func(n *Node) string { return mapText("vmap", n, nil) },
		"jump":       func(n *Node) string { return "jump " + n.text("target") },
		"goto":       func(n *Node) string { return "goto " + n.text("target") },
		"counter":    counterText,
		"limit":      limitText,
		"quota":      quotaText,
		"log":        logText,
		"mangle":     mangleText,
		"reject":     rejectText,
		"snat":       func(n *Node) string { return natText("snat", n) },
		"dnat":       func(n *Node) string { return natText("dnat", n) },
		"masquerade": func(n *Node) string { return natText("masquerade", n) },
		"redirect":   func(n *Node) string { return natText("redirect", n) },
		"tproxy":     func(n *Node) string { return natText("tproxy", n) },
		"set":        updateText,
		"map":        updateText,
		"queue":      queueText,
		"dup":        func(n *Node) string { return deviceText("dup", n) },
		"fwd":        func(n *Node) string { return deviceText("fwd", n) },
		"flow":       func(n *Node) string { return "flow " + n.text("op") + " " + n.text("flowtable") },
		"ct helper":  func(n *Node) string { return "ct helper set " + quoted(n.Text) },
		"ct timeout": func(n *Node) string { return "ct timeout set " + quoted(n.Text) },
		"ct count":   countText,
		"xt":         func(n *Node) string { return "xt " + n.text("type") + " " + quoted(n.text("name")) },
	}
}

// statementText prints one statement.
func statementText(n *Node) string {
	name, inner, ok := n.only()
	if !ok {
		return n.String()
	}
	if text := statementTexts[name]; text != nil {
		return text(inner)
	}
	if inner.Kind == Null {
		return name // accept, drop, notrack, …
	}
	return n.String()
}

func quoted(s string) string { return `"` + s + `"` }

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
	if name, inner, ok := left.only(); ok && name == "&" && len(inner.Items) == 2 {
		if datatype == "tcp_flag" || datatype == "ct_state" || datatype == "ct_status" {
			return join(exprText(&inner.Items[0], ""), shown, flagsText(right)+" / "+flagsText(&inner.Items[1]))
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
	if name, inner, ok := n.only(); ok {
		switch name {
		case "concat":
			parts := make([]string, len(inner.Items))
			for i := range parts {
				datatype := ""
				if i < len(types) {
					datatype = types[i]
				}
				parts[i] = exprText(&inner.Items[i], datatype)
			}
			return strings.Join(parts, " . ")
		case "elem":
			return annotatedText(inner, types)
		}
	}
	if len(types) == 1 {
		return exprText(n, types[0])
	}
	return exprText(n, "")
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
		if pair := &items[i]; pair.Kind == Array && len(pair.Items) == 2 {
			texts[i] = elementText(&pair.Items[0], key) + " : " + dataText(&pair.Items[1], data)
		} else {
			texts[i] = elementText(pair, key)
		}
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}

// dataText prints what a map gives.
func dataText(n *Node, types []string) string {
	if name, inner, ok := n.only(); ok {
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
		for i := range n.Items {
			names = append(names, exprText(&n.Items[i], datatype))
		}
		return strings.Join(names, ",")
	}
	name, inner, ok := n.only()
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
		parts := make([]string, len(inner.Items))
		for i := range parts {
			parts[i] = exprText(&inner.Items[i], "")
		}
		return strings.Join(parts, " . ")
	case "prefix":
		if a := inner.Get("addr"); a != nil {
			return exprText(a, datatype) + "/" + inner.text("len")
		}
	case "range":
		if len(inner.Items) == 2 {
			return exprText(&inner.Items[0], datatype) + "-" + exprText(&inner.Items[1], datatype)
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
	flags := n.Get("flags")
	var names []string
	for _, f := range flags.list() {
		names = append(names, f.Text)
	}
	return "fib " + strings.Join(names, " . ") + " " + n.text("result")
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
	if len(n.Items) < 2 {
		return n.String()
	}
	datatype := ""
	if types := typesOf(&n.Items[0]); len(types) == 1 && op != "<<" && op != ">>" {
		datatype = types[0]
	}
	parts := make([]string, len(n.Items))
	for i := range n.Items {
		parts[i] = exprText(&n.Items[i], datatype)
	}
	return strings.Join(parts, " "+op+" ")
}

func counterText(n *Node) string {
	switch n.Kind {
	case String:
		return "counter name " + quoted(n.Text)
	case Object:
		return "counter packets " + n.text("packets") + " bytes " + n.text("bytes")
	}
	return "counter"
}

func limitText(n *Node) string {
	if n.Kind == String {
		return "limit name " + quoted(n.Text)
	}
	text := "limit rate "
	if inv := n.Get("inv"); inv != nil && inv.Text == "true" {
		text += "over "
	}
	unit := n.text("rate_unit")
	text += n.text("rate")
	if unit != "" && unit != "packets" {
		text += " " + unit
	}
	text += "/" + n.text("per")
	burst, burstUnit := n.number("burst"), n.text("burst_unit")
	switch {
	case burstUnit == "" || burstUnit == "packets":
		if burst != 0 && burst != 5 {
			text += fmt.Sprintf(" burst %d packets", burst)
		}
	case burst != 0:
		text += fmt.Sprintf(" burst %d %s", burst, burstUnit)
	}
	return text
}

func quotaText(n *Node) string {
	if n.Kind == String {
		return "quota name " + quoted(n.Text)
	}
	text := "quota "
	if inv := n.Get("inv"); inv != nil && inv.Text == "true" {
		text += "over "
	}
	text += n.text("val") + " " + n.text("val_unit")
	if used := n.text("used"); used != "" && used != "0" {
		text += " used " + used + " " + n.text("used_unit")
	}
	return text
}

func countText(n *Node) string {
	if inv := n.Get("inv"); inv != nil && inv.Text == "true" {
		return "ct count over " + n.text("val")
	}
	return "ct count " + n.text("val")
}

func logText(n *Node) string {
	text := "log"
	if n.Kind != Object {
		return text
	}
	for _, m := range n.Members {
		switch m.Name {
		case "prefix":
			text += " prefix " + quoted(m.Value.Text)
		case "flags":
			text += logFlags(m.Value)
		default:
			text += " " + m.Name + " " + m.Value.Text
		}
	}
	return text
}

// logFlags prints flags: those of TCP and IP stand behind their protocol.
func logFlags(n Node) string {
	text, tcp := "", []string{}
	for _, f := range n.list() {
		if name, ok := strings.CutPrefix(f.Text, "tcp "); ok {
			tcp = append(tcp, name)
			continue
		}
		text += " flags " + f.Text
	}
	if len(tcp) > 0 {
		text = " flags tcp " + strings.Join(tcp, ",") + text
	}
	return text
}

func mangleText(n *Node) string {
	key, v := n.Get("key"), n.Get("value")
	if key == nil || v == nil {
		return n.String()
	}
	return exprText(key, "") + " set " + elementText(v, typesOf(key))
}

func rejectText(n *Node) string {
	if n.Kind != Object {
		return "reject"
	}
	return join("reject with", n.text("type"), n.text("expr"))
}

func natText(word string, n *Node) string {
	if n.Kind != Object {
		return word
	}
	words := []string{word, n.text("family")}
	for _, flag := range n.Get("type_flags").list() {
		words = append(words, flag.Text)
	}
	to := ""
	if a := n.Get("addr"); a != nil {
		to = exprText(a, "")
		if n.Get("port") != nil && a.Kind == String && strings.Contains(to, ":") {
			to = "[" + to + "]"
		}
	}
	if p := n.Get("port"); p != nil {
		to += ":" + exprText(p, "")
	}
	if to != "" {
		words = append(words, "to "+to)
	}
	var flags []string
	for _, flag := range n.Get("flags").list() {
		if flag.Text != "netmap" {
			flags = append(flags, flag.Text)
		}
	}
	return join(append(words, strings.Join(flags, ","))...)
}

// updateText prints a statement that changes a set or map.
func updateText(n *Node) string {
	e := n.Get("elem")
	if e == nil {
		return n.String()
	}
	text := exprText(e, "")
	statements := n.Get("stmt")
	for _, s := range statements.list() {
		text += " " + statementText(&s)
	}
	if data := n.Get("data"); data != nil {
		text += " : " + exprText(data, "")
	}
	set := n.text("set")
	if set == "" {
		set = n.text("map")
	}
	return n.text("op") + " " + set + " { " + text + " }"
}

func queueText(n *Node) string {
	text := "queue"
	if n.Kind != Object {
		return text
	}
	flags := n.Get("flags")
	var names []string
	for _, f := range flags.list() {
		names = append(names, f.Text)
	}
	if names != nil {
		text += " flags " + strings.Join(names, ",")
	}
	if num := n.Get("num"); num != nil {
		text += " to " + exprText(num, "")
	}
	return text
}

func deviceText(word string, n *Node) string {
	if n.Kind != Object {
		return word + " to " + quoted(n.Text)
	}
	text := word + " to"
	if a := n.Get("addr"); a != nil {
		text += " " + exprText(a, "")
	}
	if d := n.text("dev"); d != "" {
		if n.Get("addr") != nil {
			text += " device"
		}
		text += " " + quoted(d)
	}
	return text
}
