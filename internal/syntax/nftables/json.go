package nftables

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Node is a value of JSON that keeps the order of members and numbers as they were written.
type Node struct {
	Kind    NodeKind
	Text    string   // of a string, decoded; of a number or boolean, as written
	Items   []Node   // of an array
	Members []Member // of an object
}

// Member is one member of an object.
type Member struct {
	Name  string
	Value Node
}

// NodeKind is the kind of a value.
type NodeKind uint8

// The kinds.
const (
	Null NodeKind = iota
	Bool
	Number
	String
	Array
	Object
)

// Get gives a member of an object; nil where there is none. Of several with one name it is the last.
func (n *Node) Get(name string) *Node {
	for i := len(n.Members) - 1; i >= 0; i-- {
		if n.Members[i].Name == name {
			return &n.Members[i].Value
		}
	}
	return nil
}

// text is the text of a member that is a string or a number; "" for others.
func (n *Node) text(name string) string {
	m := n.Get(name)
	if m == nil || m.Kind != String && m.Kind != Number {
		return ""
	}
	return m.Text
}

// number is a member that is a whole number; 0 for others.
func (n *Node) number(name string) uint64 {
	v, _ := strconv.ParseUint(n.text(name), 10, 64)
	return v
}

// only gives the name and value of an object with one member, as nft writes statements and expressions: {"name": value}.
func (n *Node) only() (string, *Node, bool) {
	if n.Kind != Object || len(n.Members) != 1 {
		return "", nil, false
	}
	return n.Members[0].Name, &n.Members[0].Value, true
}

// list gives the items of an array, and of anything else itself alone: nft leaves brackets out around single values.
func (n *Node) list() []Node {
	switch {
	case n == nil:
		return nil
	case n.Kind == Array:
		return n.Items
	}
	return []Node{*n}
}

// parseNode reads one value of JSON.
func parseNode(data []byte) (Node, error) {
	d := decoder{text: string(data)}
	n, err := d.value(0)
	if err == nil {
		if d.space(); d.at < len(d.text) {
			err = errors.New("something stands behind the end")
		}
	}
	if err != nil {
		line := 1 + strings.Count(d.text[:min(d.at, len(d.text))], "\n")
		return Node{}, fmt.Errorf("JSON, line %d, byte %d: %w", line, d.at, err)
	}
	return n, nil
}

// maxDepth bounds values inside of values.
const maxDepth = 100

type decoder struct {
	text string
	at   int
	// Members and items of the values that are being read, the innermost last: those of each value are copied when it is complete.
	members []Member
	items   []Node
}

func (d *decoder) space() {
	for d.at < len(d.text) && strings.IndexByte(" \t\r\n", d.text[d.at]) >= 0 {
		d.at++
	}
}

// next skips spaces and gives the next byte; 0 at the end.
func (d *decoder) next() byte {
	d.space()
	if d.at == len(d.text) {
		return 0
	}
	return d.text[d.at]
}

func (d *decoder) value(depth int) (Node, error) {
	if depth > maxDepth {
		return Node{}, errors.New("too many values inside of values")
	}
	switch c := d.next(); {
	case c == '{':
		return d.object(depth)
	case c == '[':
		return d.array(depth)
	case c == '"':
		s, err := d.string()
		return Node{Kind: String, Text: s}, err
	case c == '-' || c >= '0' && c <= '9':
		return d.number()
	}
	for _, word := range []struct {
		text string
		kind NodeKind
	}{{"null", Null}, {"true", Bool}, {"false", Bool}} {
		if strings.HasPrefix(d.text[d.at:], word.text) {
			d.at += len(word.text)
			if word.kind == Null {
				return Node{}, nil
			}
			return Node{Kind: Bool, Text: word.text}, nil
		}
	}
	if d.at == len(d.text) {
		return Node{}, errors.New("it ends too early: was the file cut off?")
	}
	return Node{}, fmt.Errorf("no value starts with %q", d.text[d.at])
}

// number reads a number; its letters are checked when it is used.
func (d *decoder) number() (Node, error) {
	start := d.at
	for d.at < len(d.text) && strings.IndexByte("+-.eE0123456789", d.text[d.at]) >= 0 {
		d.at++
	}
	text := d.text[start:d.at]
	if _, err := strconv.ParseFloat(text, 64); err != nil && !errors.Is(err, strconv.ErrRange) {
		return Node{}, fmt.Errorf("no number: %q", text)
	}
	return Node{Kind: Number, Text: text}, nil
}

func (d *decoder) object(depth int) (Node, error) {
	n := Node{Kind: Object}
	start := len(d.members)
	d.at++
	if d.next() == '}' {
		d.at++
		return n, nil
	}
	for {
		if d.next() != '"' {
			return n, errors.New("a member's name is missing")
		}
		name, err := d.string()
		if err != nil {
			return n, err
		}
		if d.next() != ':' {
			return n, errors.New("no colon behind a member's name")
		}
		d.at++
		v, err := d.value(depth + 1)
		if err != nil {
			return n, err
		}
		d.members = append(d.members, Member{name, v})
		if more, err := d.more('}'); !more {
			n.Members = slices.Clone(d.members[start:])
			d.members = d.members[:start]
			return n, err
		}
	}
}

func (d *decoder) array(depth int) (Node, error) {
	n := Node{Kind: Array}
	start := len(d.items)
	d.at++
	if d.next() == ']' {
		d.at++
		return n, nil
	}
	for {
		v, err := d.value(depth + 1)
		if err != nil {
			return n, err
		}
		d.items = append(d.items, v)
		if more, err := d.more(']'); !more {
			n.Items = slices.Clone(d.items[start:])
			d.items = d.items[:start]
			return n, err
		}
	}
}

// more reads a comma, or the end.
func (d *decoder) more(end byte) (bool, error) {
	switch d.next() {
	case ',':
		d.at++
		return true, nil
	case end:
		d.at++
		return false, nil
	}
	return false, fmt.Errorf("neither a comma nor %q", end)
}

func (d *decoder) string() (string, error) {
	d.at++
	rest := d.text[d.at:]
	if end := strings.IndexAny(rest, "\"\\"); end >= 0 && rest[end] == '"' {
		d.at += end + 1
		return strings.ToValidUTF8(rest[:end], "\ufffd"), nil
	}
	var b strings.Builder
	for d.at < len(d.text) {
		c := d.text[d.at]
		d.at++
		switch c {
		case '"':
			return strings.ToValidUTF8(b.String(), "\ufffd"), nil
		case '\\':
			if err := d.escape(&b); err != nil {
				return "", err
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", errors.New("a string does not end")
}

var escapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (d *decoder) escape(b *strings.Builder) error {
	if d.at == len(d.text) {
		return errors.New("a string does not end")
	}
	c := d.text[d.at]
	d.at++
	if plain, ok := escapes[c]; ok {
		b.WriteByte(plain)
		return nil
	}
	if c != 'u' {
		return fmt.Errorf("no escape: \\%c", c)
	}
	r, err := d.unit()
	if err != nil {
		return err
	}
	if utf16.IsSurrogate(r) && strings.HasPrefix(d.text[d.at:], "\\u") {
		d.at += 2
		second, err := d.unit()
		if err != nil {
			return err
		}
		r = utf16.DecodeRune(r, second)
	}
	b.WriteRune(r)
	return nil
}

// unit reads the four digits of an escape.
func (d *decoder) unit() (rune, error) {
	if len(d.text)-d.at < 4 {
		return 0, errors.New("a string does not end")
	}
	n, err := strconv.ParseUint(d.text[d.at:d.at+4], 16, 16)
	if err != nil {
		return 0, fmt.Errorf("no escape: \\u%s", d.text[d.at:d.at+4])
	}
	d.at += 4
	return rune(n), nil
}

// Append writes the value as nft does (jansson's compact form with spaces behind commas and colons).
func (n *Node) Append(b []byte) []byte {
	switch n.Kind {
	case Null:
		return append(b, "null"...)
	case Bool, Number:
		return append(b, n.Text...)
	case String:
		return appendString(b, n.Text)
	case Array:
		b = append(b, '[')
		for i := range n.Items {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = n.Items[i].Append(b)
		}
		return append(b, ']')
	}
	b = append(b, '{')
	for i := range n.Members {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(appendString(b, n.Members[i].Name), ": "...)
		b = n.Members[i].Value.Append(b)
	}
	return append(b, '}')
}

// String is the value as JSON.
func (n *Node) String() string { return string(n.Append(nil)) }

var letters = map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch letter := letters[r]; {
		case letter != "":
			b = append(b, letter...)
		case r < 0x20:
			b = fmt.Appendf(b, `\u%04X`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
