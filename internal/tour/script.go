package tour

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"unicode/utf8"
)

// A Script is a page, read as a tour.
//
// The page is Markdown. What is in fences with the info string "console" are steps: lines that begin with "$ " are commands, which go on
// over the next line after a backslash and on lines that begin with "> "; what follows is their output. In an output, "…" stands for any
// text, and alone on a line for any lines, also none. The info string "console any-order" is for outputs whose lines come in no certain
// order. A comment <!-- varies: PREFIX, FIRST-LAST --> gives the addresses that differ from cluster to cluster. All else is text.
type Script struct {
	Title    string
	Varies   []Range
	Sections []Section // the first one is what stands before the first heading below the title
}

// A Section is a heading and what stands below it.
type Section struct {
	Heading string // empty: what stands below the title
	Level   int    // 2 for ##
	Items   []Item
}

// An Item is a step, or a block of text: a paragraph, a list, a table, or a fenced block that is none of commands.
type Item struct {
	Step *Step
	Text string // without the newline at its end
}

// A Step is one command and what it prints.
type Step struct {
	Command  string   // one or more lines, without prompts
	Output   []string // lines without newlines
	AnyOrder bool
	Line     int // of the page, from 1, where the command begins
	output   int // of the page, from 0, where the output begins
}

// A Range is a row of addresses, First to Last inclusive.
type Range struct{ First, Last netip.Addr }

// Contains says whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return r.First.BitLen() == a.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Steps returns all of the page's.
func (s *Script) Steps() []*Step {
	var all []*Step
	for _, section := range s.Sections {
		for _, item := range section.Items {
			if item.Step != nil {
				all = append(all, item.Step)
			}
		}
	}
	return all
}

var (
	heading = regexp.MustCompile(`^(#{1,6}) +(.*?)(?: +#+)?$`)
	varies  = regexp.MustCompile(`^<!-- varies: (.*) -->$`)
)

// ErrNoSteps is a page without commands.
var ErrNoSteps = errors.New("no steps: write commands in fences with the info string console, each behind \"$ \"")

// Parse reads a page. Errors name the line.
func Parse(page string) (*Script, error) {
	p := parser{script: &Script{Sections: []Section{{}}}}
	lines := strings.Split(page, "\n")
	for i, line := range lines {
		if !utf8.ValidString(line) {
			return nil, fmt.Errorf("line %d: what is there is no text in UTF-8", i+1)
		}
		line = strings.TrimSuffix(line, "\r")
		if err := p.line(i, line); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	if p.fence != "" {
		return nil, fmt.Errorf("line %d: a fence that does not end", p.fenceAt+1)
	}
	p.endText()
	if p.script.Title == "" {
		return nil, errors.New("no title: write # TITLE on the first line")
	}
	if len(p.script.Steps()) == 0 {
		return nil, ErrNoSteps
	}
	return p.script, nil
}

type parser struct {
	script   *Script
	text     []string // of the block that is being read
	fence    string   // the fence that ends the block; empty outside
	fenceAt  int
	console  bool
	anyOrder bool
	step     *Step
	unended  bool // the step's command goes on
}

func (p *parser) line(i int, line string) error {
	switch {
	case p.fence != "" && strings.TrimRight(line, " ") == p.fence:
		return p.endFence(line)
	case p.fence != "" && p.console:
		return p.consoleLine(i, line)
	case p.fence != "":
		p.text = append(p.text, line)
	case strings.HasPrefix(line, "```"):
		p.beginFence(i, line)
	case strings.TrimSpace(line) == "":
		p.endText()
	case heading.MatchString(line):
		p.endText()
		m := heading.FindStringSubmatch(line)
		if len(m[1]) == 1 {
			if p.script.Title != "" {
				return errors.New("a second title: headings below the first are ##")
			}
			p.script.Title = m[2]
			return nil
		}
		p.script.Sections = append(p.script.Sections, Section{Heading: m[2], Level: len(m[1])})
	case varies.MatchString(line):
		p.endText()
		return p.ranges(varies.FindStringSubmatch(line)[1])
	default:
		p.text = append(p.text, line)
	}
	return nil
}

func (p *parser) beginFence(i int, line string) {
	p.endText()
	info := strings.TrimLeft(line, "`")
	p.fence, p.fenceAt, p.step, p.unended = line[:len(line)-len(info)], i, nil, false
	words := strings.Fields(info)
	p.console = len(words) > 0 && words[0] == "console"
	p.anyOrder = len(words) > 1 && words[1] == "any-order"
	if !p.console {
		p.text = append(p.text, line)
	}
}

func (p *parser) endFence(line string) error {
	if !p.console {
		p.text = append(p.text, line)
		p.endText()
	} else if p.step == nil || p.unended {
		return errors.New("a console block that ends where a command should be")
	}
	p.fence, p.step = "", nil
	return nil
}

func (p *parser) consoleLine(i int, line string) error {
	command, isCommand := strings.CutPrefix(line, "$ ")
	more, isMore := strings.CutPrefix(line, "> ")
	switch {
	case p.step != nil && (p.unended || isMore && len(p.step.Output) == 0):
		if isMore {
			line = more
		}
		p.step.Command += "\n" + line
		command = line
		p.step.output = i + 1
	case isCommand:
		p.step = &Step{Command: command, AnyOrder: p.anyOrder, Line: i + 1, output: i + 1}
		p.add(Item{Step: p.step})
	case p.step == nil:
		return errors.New("output without a command: a console block begins with \"$ COMMAND\"")
	default:
		p.step.Output = append(p.step.Output, line)
		return nil
	}
	p.unended = strings.HasSuffix(command, `\`)
	return nil
}

func (p *parser) endText() {
	if len(p.text) > 0 {
		p.add(Item{Text: strings.Join(p.text, "\n")})
	}
	p.text = nil
}

func (p *parser) add(item Item) {
	last := &p.script.Sections[len(p.script.Sections)-1]
	last.Items = append(last.Items, item)
}

func (p *parser) ranges(list string) error {
	for _, text := range strings.Split(list, ",") {
		r, err := parseRange(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		p.script.Varies = append(p.script.Varies, r)
	}
	return nil
}

func parseRange(text string) (Range, error) {
	bad := fmt.Errorf("%q is no range of addresses: write 10.0.0.0/16 or 10.0.0.5-10.0.0.34", text)
	if prefix, err := netip.ParsePrefix(text); err == nil {
		if prefix != prefix.Masked() {
			return Range{}, fmt.Errorf("%s has bits set after its prefix length: write %s", text, prefix.Masked())
		}
		last := prefix.Addr().AsSlice()
		for bit := prefix.Bits(); bit < prefix.Addr().BitLen(); bit++ {
			last[bit/8] |= 0x80 >> (bit % 8)
		}
		end, _ := netip.AddrFromSlice(last)
		return Range{prefix.Addr(), end}, nil
	}
	from, to, ok := strings.Cut(text, "-")
	if !ok {
		return Range{}, bad
	}
	first, err1 := netip.ParseAddr(from)
	last, err2 := netip.ParseAddr(to)
	if err1 != nil || err2 != nil || first.BitLen() != last.BitLen() || last.Less(first) {
		return Range{}, bad
	}
	return Range{first, last}, nil
}

// Rewrite gives the page with other outputs: those of the steps that are in outputs, by the line of their command. It fails where an
// output would be read as something else.
func Rewrite(page string, outputs map[int][]string) (string, error) {
	script, err := Parse(page)
	if err != nil {
		return "", err
	}
	lines := strings.Split(page, "\n")
	var out []string
	next := 0 // the first line that is not copied yet
	for _, s := range script.Steps() {
		output, ok := outputs[s.Line]
		if !ok {
			continue
		}
		for _, line := range output {
			if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "```") || strings.ContainsAny(line, "\n\r") {
				return "", fmt.Errorf("line %d: the command prints %q, which a page cannot have as output", s.Line, line)
			}
		}
		if len(output) > 0 && strings.HasPrefix(output[0], "> ") {
			return "", fmt.Errorf("line %d: the command prints %q, which would be read as the command's next line", s.Line, output[0])
		}
		out = append(out, lines[next:s.output]...)
		out = append(out, output...)
		next = s.output + len(s.Output)
	}
	return strings.Join(append(out, lines[next:]...), "\n"), nil
}
