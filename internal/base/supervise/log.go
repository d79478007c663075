package supervise

import (
	"bytes"
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
// is none.
func LastLines(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	return LastLinesOf(f)
}

// LastLinesOf is LastLines of a file that is open.
func LastLinesOf(f *os.File) string {
	if info, err := f.Stat(); err == nil {
		_, _ = f.Seek(max(0, info.Size()-lastBytes), io.SeekStart)
	}
	text, _ := io.ReadAll(io.LimitReader(f, lastBytes))
	lines := strings.Split(string(bytes.TrimSpace(text)), "\n")
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
