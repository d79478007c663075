package termsafe

import (
	"bytes"
	"encoding/json"
)

// JSON returns a JSON document whose strings, once they are decoded, are as Text shows them. Use it for readers that print what they decode,
// and Writer for those that print the document. JSON panics if the document is invalid.
func JSON(document []byte) []byte {
	var out []byte
	for {
		begin := bytes.IndexByte(document, '"')
		if begin < 0 {
			return append(out, document...)
		}
		end := begin + 1
		for document[end] != '"' {
			if document[end] == '\\' {
				end++
			}
			end++
		}
		out = append(out, document[:begin]...)
		out = append(out, safeString(document[begin:end+1])...)
		document = document[end+1:]
	}
}

// safeString returns a JSON string whose content is as Text shows it.
func safeString(quoted []byte) []byte {
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil || Text(s) == s {
		return quoted
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(Text(s)) // a string, into memory
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
