package supervise

import (
	"io"
	"os"
	"strings"
	"unicode"
)

// What LastLines reads of a log at most.
const (
	lastLines = 5
	lastBytes = 2 << 10
)

// LastLines gives the last lines of a log, at most five, each after a line break and two blanks, without control characters; "" when there
// is none. They may be in what was set aside of it.
func LastLines(path string) string {
	return formatLines(lastOf(Aside(path)) + lastOf(path))
}

// LastLinesOf does what LastLines does with an open file.
func LastLinesOf(f *os.File) string { return formatLines(readEnd(f)) }

func lastOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	return readEnd(f)
}

func readEnd(f *os.File) string {
	if info, err := f.Stat(); err == nil {
		_, _ = f.Seek(max(0, info.Size()-lastBytes), io.SeekStart)
	}
	text, _ := io.ReadAll(io.LimitReader(f, lastBytes))
	return string(text)
}

func formatLines(text string) string {
	text = strings.TrimSpace(text[max(0, len(text)-lastBytes):])
	lines := strings.Split(text, "\n")
	var out strings.Builder
	for _, line := range lines[max(0, len(lines)-lastLines):] {
		out.WriteString("\n  " + strings.Map(printable, line))
	}
	return strings.TrimRight(out.String(), "\n ")
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return ' '
}
