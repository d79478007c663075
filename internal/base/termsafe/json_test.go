package termsafe

import (
	"encoding/json"
	"testing"
)

// TestDecodedJSON: the strings of a document are decoded as Text shows them, and all else stays.
func TestDecodedJSON(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"plain", `{"a": ["x\"y\\", 1.50, null, true]}`, `{"a": ["x\"y\\", 1.50, null, true]}`},
		{"escape", `["\u001b[2J"]`, `["\\u001b[2J"]`},
		{"raw control of Unicode", "[\"a\u202eb\u009b\"]", `["a\\u202eb\\u009b"]`},
		{"ends of lines", `["a\r\nforged"]`, `["a\\u000d\\u000aforged"]`},
		{"key", `{"\u0007": 1}`, `{"\\u0007": 1}`},
		{"quotes and markup", `["<\u001b>\"&"]`, `["<\\u001b>\"&"]`},
		{"surrogates", `["\udb40\udc41"]`, `["\\udb40\\udc41"]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(JSON([]byte(tt.in))); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func FuzzJSON(f *testing.F) {
	f.Add(`{"a\u001b":["\\\"",{"b":"\n"}]}`)
	f.Fuzz(func(t *testing.T, document string) {
		if !json.Valid([]byte(document)) {
			return // JSON is for documents that are valid
		}
		got := JSON([]byte(document))
		if !json.Valid(got) {
			t.Errorf("%q: %q", document, got)
		}
		if again := JSON(got); string(again) != string(got) {
			t.Errorf("%q: %q, again %q", document, got, again)
		}
	})
}
