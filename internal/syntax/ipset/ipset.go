package ipset

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
)

// Set is one set. What the type decides stays text: options and elements are those of ipset(8), to the letter.
type Set struct {
	Name    string
	Type    string // "hash:net", "bitmap:port", "list:set", …
	Options string // behind the type: "family inet hashsize 1024 maxelem 65536"
	Members []Member
}

// Member is one element.
type Member struct {
	Element string // "10.0.0.0/8,tcp:80"
	Options string // behind it: "nomatch", `timeout 50 comment "x"`
}

// Parse reads the output of "ipset save" or of "ipset list". Errors name the line.
func Parse(data []byte) ([]Set, error) {
	p := parser{index: map[string]int{}}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if err := p.line(strings.TrimSpace(string(line))); err != nil {
			return nil, fmt.Errorf("ipset, line %d: %w", number, err)
		}
	}
	return p.sets, nil
}

type parser struct {
	sets    []Set
	index   map[string]int
	listing bool // in the output of "list"
	members bool // behind "Members:"
}

func (p *parser) line(line string) error {
	if line == "" {
		p.members = false
		return nil
	}
	if line[0] == '#' {
		return nil
	}
	if name, ok := strings.CutPrefix(line, "Name: "); ok {
		p.listing, p.members = true, false
		return p.create(name, "", "")
	}
	if p.listing {
		return p.listed(line)
	}
	command, rest, _ := strings.Cut(line, " ")
	name, rest, _ := strings.Cut(strings.TrimSpace(rest), " ")
	what, options, _ := strings.Cut(strings.TrimSpace(rest), " ")
	options = strings.TrimSpace(options)
	switch {
	case command != "create" && command != "add":
		return fmt.Errorf(`%q is neither from "ipset save" nor from "ipset list"`, line)
	case name == "" || what == "":
		return fmt.Errorf("%q ends too early", line)
	case command == "create":
		return p.create(name, what, options)
	}
	i, ok := p.index[name]
	if !ok {
		return fmt.Errorf("element of set %q, which is not created before it", name)
	}
	p.sets[i].Members = append(p.sets[i].Members, Member{what, options})
	return nil
}

func (p *parser) create(name, kind, options string) error {
	if _, ok := p.index[name]; ok {
		return fmt.Errorf("set %q is there twice", name)
	}
	if name == "" || strings.ContainsFunc(name, unicode.IsSpace) {
		return fmt.Errorf("no name of a set: %q", name)
	}
	p.index[name] = len(p.sets)
	p.sets = append(p.sets, Set{Name: name, Type: kind, Options: options})
	return nil
}

// listed reads a line of "ipset list" behind a set's name.
func (p *parser) listed(line string) error {
	s := &p.sets[len(p.sets)-1]
	if p.members {
		element, options, _ := strings.Cut(line, " ")
		s.Members = append(s.Members, Member{element, strings.TrimSpace(options)})
		return nil
	}
	key, value, _ := strings.Cut(line, ":")
	switch value = strings.TrimSpace(value); key {
	case "Type":
		if value == "" || strings.ContainsFunc(value, unicode.IsSpace) {
			return fmt.Errorf("no type of a set: %q", value)
		}
		s.Type = value
	case "Header":
		s.Options = value
	case "Members":
		p.members = true
	case "Revision", "Size in memory", "References", "Number of entries":
	default:
		return fmt.Errorf("%q is not from \"ipset list\"", line)
	}
	return nil
}

// Print writes sets as "ipset save" does. Sets whose type is not known (a listing that was cut off) are left out.
func Print(sets []Set) []byte {
	var b bytes.Buffer
	for i := range sets {
		s := &sets[i]
		if s.Type == "" {
			continue
		}
		writeLine(&b, "create", s.Name, s.Type, s.Options)
		for _, m := range s.Members {
			writeLine(&b, "add", s.Name, m.Element, m.Options)
		}
	}
	return b.Bytes()
}

func writeLine(b *bytes.Buffer, words ...string) {
	for i, w := range words {
		if w == "" {
			continue
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(w)
	}
	b.WriteByte('\n')
}

// option finds an option; ok tells that it is there, value is the word behind it.
func option(options, name string) (value string, ok bool) {
	words := split(options)
	for i, w := range words {
		if w != name {
			continue
		}
		if i+1 < len(words) {
			value = words[i+1]
		}
		return value, true
	}
	return "", false
}

// split splits at spaces; quotes keep words together and are taken off, and mark what is in them as no option's name.
func split(text string) []string {
	var words []string
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		if text[0] == '"' {
			word, rest, _ := strings.Cut(text[1:], `"`)
			words, text = append(words, "\x00"+word), rest
			continue
		}
		word, rest, _ := strings.Cut(text, " ")
		words, text = append(words, word), rest
	}
	return words
}
