package explain

import (
	"bytes"
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
	names := map[string]string{}
	for a, name := range o.Redacted {
		names[a.String()], names["["+a.String()+"]"] = name, name
	}
	var b bytes.Buffer
	return &b, func() {
		_, _ = w.Write(placeholder.ReplaceAllFunc(b.Bytes(), func(found []byte) []byte {
			if name, ok := names[string(found)]; ok {
				return []byte(name)
			}
			return found
		}))
	}
}
