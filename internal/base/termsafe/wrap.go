package termsafe

import (
	"strings"
	"unicode/utf8"
)

// Wrap splits a text at spaces into lines of at most width characters. It does not split if width is not positive.
func Wrap(text string, width int) []string {
	if width <= 0 {
		return []string{text}
	}
	var lines []string
	begin, end, room := 0, 0, width // of the line so far, and what it has left
	for at := 0; ; at = end + 1 {
		word, _, more := strings.Cut(text[at:], " ")
		length := utf8.RuneCountInString(word)
		if at > 0 && length+1 > room {
			lines = append(lines, text[begin:end])
			begin, room = at, width-length
		} else if at > 0 {
			room -= length + 1
		} else {
			room -= length
		}
		if end = at + len(word); !more {
			return append(lines, text[begin:])
		}
	}
}
