package nftables

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

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
		"ct count":   func(n *Node) string { return join("ct count", over(n), n.text("val")) },
		"xt":         func(n *Node) string { return "xt " + n.text("type") + " " + quoted(n.text("name")) },
	}
}

// statementText prints one statement.
func statementText(n *Node) string {
	name, inner, ok := n.singleMember()
	if !ok {
		return n.String()
	}
	if text := statementTexts[name]; text != nil {
		return text(inner)
	}
	if name == "unread" {
		return "(not read)"
	}
	if inner.Kind == Null {
		return name // accept, drop, notrack, …
	}
	return n.String()
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
	unit := n.text("rate_unit")
	text := join("limit rate", over(n), n.text("rate"))
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

// over returns the word for a limit that is to be exceeded.
func over(n *Node) string {
	if inv := n.Get("inv"); inv != nil && inv.Text == "true" {
		return "over"
	}
	return ""
}

func quotaText(n *Node) string {
	if n.Kind == String {
		return "quota name " + quoted(n.Text)
	}
	text := join("quota", over(n), n.text("val"), n.text("val_unit"))
	if used := n.text("used"); used != "" && used != "0" {
		text += " used " + used + " " + n.text("used_unit")
	}
	return text
}

func logText(n *Node) string {
	text := "log"
	if n.Kind != Object {
		return text
	}
	for _, m := range n.Items {
		switch m.Name {
		case "prefix":
			text += " prefix " + quoted(m.Text)
		case "flags":
			text += logFlags(m)
		default:
			text += " " + m.Name + " " + m.Text
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
	words := append([]string{word, n.text("family")}, texts(n.Get("type_flags"))...)
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
	flags := slices.DeleteFunc(texts(n.Get("flags")), func(flag string) bool { return flag == "netmap" })
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
	return n.text("op") + " " + cmp.Or(n.text("set"), n.text("map")) + " { " + text + " }"
}

func queueText(n *Node) string {
	text := "queue"
	if n.Kind != Object {
		return text
	}
	if flags := texts(n.Get("flags")); flags != nil {
		text += " flags " + strings.Join(flags, ",")
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
