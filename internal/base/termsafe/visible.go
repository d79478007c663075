// Package termsafe shows text that others made: names, comments, rules and logs out of captures and containers. A terminal must not take
// any of it for a command, nor a reader one line for two.
package termsafe

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns a text for the inside of a line: control characters, among them the ends of lines, and those that change the direction of
// writing, are shown as JSON writes them, \u001b (by two beyond U+FFFF), and bytes that are no UTF-8 as \x9b. A backslash stays as it is.
func Text(s string) string {
	if !strings.ContainsFunc(s, hidden) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case hidden(r):
			for _, unit := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

// Line does what Text does for a message that may have several lines: blanks and ends of lines become one space.
func Line(s string) string { return Text(strings.Join(strings.Fields(s), " ")) }

// hidden reports whether a character is not to be seen, or moves what is: Cc, Cf without those that words are written with (U+200C and
// U+200D, and the soft hyphen), and the separators of lines and paragraphs.
func hidden(r rune) bool {
	switch r {
	case '\u00ad', '\u200c', '\u200d':
		return false
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}

// A writer shows what is written to another.
type writer struct {
	to   io.Writer
	rest []byte // the begin of a character whose end is still to come
}

// Writer returns a writer for whole pages. It shows what comes as Text does, but for ends of lines, tabs and the looks of words that this
// program gives them. JSON stays JSON with the same texts in it.
func Writer(to io.Writer) io.Writer { return &writer{to: to} }

// passes are ends of lines, tabs, and looks (ECMA-48, SGR): bold, faint, red, green, yellow, and back. Others' are no worse than ours.
var passes = regexp.MustCompile("\r?\n|\t|\x1b\\[(0|1|2|31|32|33)m")

func (w *writer) Write(p []byte) (int, error) {
	text := append(w.rest, p...)
	w.rest = nil
	for i := max(0, len(text)-utf8.UTFMax); i < len(text); i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRune(text[i:]) {
			text, w.rest = text[:i], bytes.Clone(text[i:])
			break
		}
	}
	var out []byte
	for len(text) > 0 {
		end, next := len(text), len(text)
		if at := passes.FindIndex(text); at != nil {
			end, next = at[0], at[1]
		}
		out = append(append(out, Text(string(text[:end]))...), bytes.TrimPrefix(text[end:next], []byte("\r"))...)
		text = text[next:]
	}
	if _, err := w.to.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}
