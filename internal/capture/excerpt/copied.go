package excerpt

import (
	"html"
	"regexp"
	"strconv"
	"strings"
)

// linesOf takes a text apart into lines as the programs printed them: without the numbers and times that editors, cat -n, grep -n and logs
// put in front of all of them, and without what web pages and word processors make of quotation marks, dashes and brackets.
func linesOf(text []byte) []string {
	lines := strings.Split(string(text), "\n")
	for _, prefix := range []*regexp.Regexp{lineTime, lineNumber} {
		if isPrefix(prefix, lines) {
			for i, line := range lines {
				lines[i] = line[len(prefix.FindString(line)):]
			}
		}
	}
	for i, line := range lines {
		if strings.IndexByte(line, '&') >= 0 && entity.MatchString(line) {
			line = html.UnescapeString(line)
		}
		if strings.IndexByte(line, general) < 0 {
			lines[i] = line
			continue
		}
		if rest, isRule := strings.CutPrefix(strings.TrimLeft(line, " \t>"), "-A "); isRule && strings.ContainsAny(rest, "“”„–—") {
			line = "-A " + typesetDash.ReplaceAllString(typesetQuotes.Replace(rest), "$1--$2")
		}
		lines[i] = line
	}
	return lines
}

var (
	lineNumber = regexp.MustCompile(`^\s*([0-9]+)(?::|\t|\s{1,2})`)
	lineTime   = regexp.MustCompile(`^\[?(?:[0-9]{4}-[0-9]{2}-[0-9]{2}[T ])?[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?\]?:?\s`)
	entity     = regexp.MustCompile(`&(?:lt|gt|amp|quot|apos|nbsp|#[0-9]{1,5}|#x[0-9a-fA-F]{1,4});`)
	// typesetDash is a dash in front of a long option's name, for two hyphens.
	typesetDash   = regexp.MustCompile(`(^|\s)[–—]([a-z])`)
	typesetQuotes = strings.NewReplacer("“", `"`, "”", `"`, "„", `"`)
)

// ofRules is the beginning of a line with rules: "ip rule" and "ip link" have numbers of their own.
var ofRules = regexp.MustCompile(`^(?:\*[a-z]+$|-[AIPN] |:[\w.-]+ \S+ \[|Chain \S+ \()`)

// general is the first byte, in UTF-8, of quotation marks, dashes and arrows (Unicode: General Punctuation, Arrows, Dingbats). Most
// lines have none.
const general = 0xe2

// isPrefix reports whether all lines but empty ones begin so, with rules behind some, and numbers count up.
func isPrefix(prefix *regexp.Regexp, lines []string) bool {
	found, last := false, -1
	for _, line := range lines {
		if strings.TrimSpace(line) == "" {
			continue
		}
		m := prefix.FindStringSubmatch(line)
		if m == nil {
			return false
		}
		if len(m) > 1 {
			n, err := strconv.Atoi(m[1])
			if err != nil || n <= last {
				return false
			}
			last = n
		}
		found = found || ofRules.MatchString(line[len(m[0]):])
	}
	return found
}
