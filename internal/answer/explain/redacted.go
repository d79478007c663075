package explain

import (
	"bytes"
	"cmp"
	"io"
	"regexp"
)

// placeholder finds what stands for a redacted address: of 0.0.0.0/24, or of 100::/64.
var placeholder = regexp.MustCompile(`\b(?:[0-9]+\.)?0\.0\.0\.[0-9]+\b|\[?\b100::[0-9a-f]+\b\]?`)

// named returns a writer that writes the names of redacted addresses in place of what stands for them. done writes what is left.
func (o *Options) named(w io.Writer) (named io.Writer, done func()) {
	if len(o.Redacted) == 0 {
		return w, func() {}
	}
	var b bytes.Buffer
	return &b, func() { _, _ = io.WriteString(w, o.withNames(b.String())) }
}

// withNames returns a text with the names of redacted addresses in place of what stands for them.
func (o *Options) withNames(text string) string {
	if len(o.Redacted) == 0 {
		return text
	}
	names := map[string]string{}
	for a, name := range o.Redacted {
		names[a.String()], names["["+a.String()+"]"] = name, name
	}
	return placeholder.ReplaceAllStringFunc(text, func(found string) string { return cmp.Or(names[found], found) })
}
