package nftables

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Node is a value of JSON that keeps the order of members and numbers as they were written.
type Node struct {
	Kind  NodeKind
	Name  string // of a member of an object
	Text  string // of a string, decoded; of a number or boolean, as written
	Items []Node // of an array, and the members of an object
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
	if n.Kind != Object {
		return nil
	}
	for i := len(n.Items) - 1; i >= 0; i-- {
		if n.Items[i].Name == name {
			return &n.Items[i]
		}
	}
	return nil
}

// text returns the text of a member that is a string or a number; "" for others.
func (n *Node) text(name string) string {
	m := n.Get(name)
	if m == nil || m.Kind != String && m.Kind != Number {
		return ""
	}
	return m.Text
}

// number returns a member that is a whole number; 0 for others.
func (n *Node) number(name string) uint64 {
	v, _ := strconv.ParseUint(n.text(name), 10, 64)
	return v
}

// singleMember gives the name and value of an object with one member, as nft writes statements and expressions: {"name": value}.
func (n *Node) singleMember() (string, *Node, bool) {
	if n.Kind != Object || len(n.Items) != 1 {
		return "", nil, false
	}
	return n.Items[0].Name, &n.Items[0], true
}

// elements returns the items of an array; nil for everything else.
func (n *Node) elements() []Node {
	if n.Kind != Array {
		return nil
	}
	return n.Items
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

// ended says of an error where it is; without one, that of what stands behind the value.
func (d *decoder) ended(err error) error {
	if d.space(); err == nil && d.at < len(d.text) {
		err = errors.New("something stands behind the end")
	}
	if err == nil {
		return nil
	}
	line := 1 + strings.Count(d.text[:min(d.at, len(d.text))], "\n")
	return fmt.Errorf("JSON, line %d, byte %d: %w", line, d.at, err)
}

var errCutOff = errors.New("it ends too early: was the file cut off?")

// maxDepth bounds values inside of values.
const maxDepth = 100

type decoder struct {
	text string
	at   int
	open []Node // items and members of the values that are being read, the innermost last
	room []Node // for those of values that are complete
	// apart names a member of the outermost object: if that is an array, its items are not read, but found.
	apart string
	items []extent
}

// complete gives a value the items and members that were read since it began.
func (d *decoder) complete(n *Node, since int) {
	items := d.open[since:]
	if len(items) > cap(d.room)-len(d.room) {
		d.room = make([]Node, 0, max(1024, len(items)))
	}
	begin := len(d.room)
	d.room = append(d.room, items...)
	n.Items = d.room[begin:len(d.room):len(d.room)]
	d.open = d.open[:since]
}

func (d *decoder) space() {
	for d.at < len(d.text) && isSpace(d.text[d.at]) {
		d.at++
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

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
		return Node{}, errCutOff
	}
	return Node{}, fmt.Errorf("no value starts with %q", d.text[d.at])
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// number reads a number; its letters are checked when it is used.
func (d *decoder) number() (Node, error) {
	start := d.at
	for d.at < len(d.text) && isDigit(d.text[d.at]) {
		d.at++
	}
	if d.at > start && (d.at == len(d.text) || strings.IndexByte("+-.eE", d.text[d.at]) < 0) {
		return Node{Kind: Number, Text: d.text[start:d.at]}, nil
	}
	for d.at < len(d.text) && (isDigit(d.text[d.at]) || strings.IndexByte("+-.eE", d.text[d.at]) >= 0) {
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
	start := len(d.open)
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
		v, err := d.member(name, depth+1)
		if err != nil {
			return n, err
		}
		v.Name = name
		d.open = append(d.open, v)
		if more, err := d.more('}'); !more {
			d.complete(&n, start)
			return n, err
		}
	}
}

// member reads the value of a member.
func (d *decoder) member(name string, depth int) (n Node, err error) {
	if depth > 1 || d.apart == "" || name != d.apart || d.next() != '[' {
		return d.value(depth)
	}
	items, end, ok := extents(d.text, d.at)
	if !ok {
		d.at = len(d.text)
		return n, errCutOff
	}
	d.items, d.at = items, end
	return Node{Kind: Array}, nil
}

func (d *decoder) array(depth int) (Node, error) {
	n := Node{Kind: Array}
	start := len(d.open)
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
		d.open = append(d.open, v)
		if more, err := d.more(']'); !more {
			d.complete(&n, start)
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
	if end := strings.IndexByte(rest, '"'); end >= 0 && strings.IndexByte(rest[:end], '\\') < 0 {
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
	for i := range n.Items {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(appendString(b, n.Items[i].Name), ": "...)
		b = n.Items[i].Append(b)
	}
	return append(b, '}')
}

// String returns the value as JSON.
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
