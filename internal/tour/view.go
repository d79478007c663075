package tour

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// A View shows a tour. Commands' outputs are written to it.
type View struct {
	io.Writer
	Width int  // text is broken to lines of at most so many characters; 0: as the page has it
	Color bool // it is a terminal
}

func (v View) bold(text string) string {
	if !v.Color {
		return text
	}
	return "\x1b[1m" + text + "\x1b[0m"
}

func (v View) dim(text string) string {
	if !v.Color {
		return text
	}
	return "\x1b[2m" + text + "\x1b[0m"
}

// Title begins the tour.
func (v View) Title(title string) { fmt.Fprintln(v, v.bold(title)) }

// Heading shows the question that the next steps answer, number i of n.
func (v View) Heading(text string, i, n int) {
	fmt.Fprintf(v, "\n%s\n", v.bold(fmt.Sprintf("== %d/%d  %s", i, n, numbered.ReplaceAllString(plain(text), ""))))
}

// numbered is the number that a page itself gives a heading.
var numbered = regexp.MustCompile(`^[0-9]+\.\s+`)

// Command shows the command that runs next. The reader's Enter ends the line.
func (v View) Command(command string) {
	fmt.Fprintf(v, "\n%s", v.bold("$ "+strings.ReplaceAll(command, "\n", "\n> ")))
}

// Text shows a text of the page.
func (v View) Text(text string) {
	fmt.Fprintln(v)
	if strings.HasPrefix(text, "```") {
		lines := strings.Split(text, "\n")
		text = "    " + strings.Join(lines[1:len(lines)-1], "\n    ")
		fmt.Fprintln(v, text)
		return
	}
	if v.Width == 0 || strings.HasPrefix(text, "|") {
		fmt.Fprintln(v, plain(text))
		return
	}
	for _, item := range items(plain(text)) {
		fmt.Fprintln(v, wrap(item, v.Width))
	}
}

// Again shows the output of a command that was run again, after so long.
func (v View) Again(after time.Duration, output string) {
	fmt.Fprintln(v, v.dim(fmt.Sprintf("(asked again, for %.1f s)", after.Seconds())))
	if output != "" {
		fmt.Fprintln(v, strings.TrimSuffix(output, "\n"))
	}
}

// Differs says that an output is not what the page has.
func (v View) Differs(err error) {
	fmt.Fprintln(v, v.bold("! "+err.Error()))
}

var (
	strong = regexp.MustCompile(`\*\*([^*]+)\*\*`)
	link   = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)
	bullet = regexp.MustCompile(`^(?:[-*]|\d+\.) `)
)

// plain takes Markdown's marks out of a text.
func plain(text string) string {
	return link.ReplaceAllString(strong.ReplaceAllString(text, "$1"), "$1")
}

// items returns the parts of a block that begin on a line of their own.
func items(text string) []string {
	var all []string
	for _, line := range strings.Split(text, "\n") {
		if len(all) == 0 || bullet.MatchString(line) {
			all = append(all, line)
		} else {
			all[len(all)-1] += " " + strings.TrimSpace(line)
		}
	}
	return all
}

// wrap breaks a text between words; lines of a list's item are indented behind the first.
func wrap(text string, width int) string {
	indent := ""
	if m := bullet.FindString(text); m != "" {
		indent = strings.Repeat(" ", len(m))
	}
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+n > width:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}
