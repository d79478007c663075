package ruleset

import (
	"strings"
	"testing"
)

// TestLoadNFT: nft reads its own syntax in a namespace of its own: nothing of it gets into this one.
func TestLoadNFT(t *testing.T) {
	for _, c := range []struct{ name, text, want, fails string }{
		{"a table", "table inet load-test {\n\tchain f {\n\t\ttype filter hook forward priority 0; policy drop;\n\t}\n}\n", `"name": "load-test"`, ""},
		{"nothing", "", `"metainfo"`, ""},
		{"a mistake", "table inet t {\n\tfoo\n}\n", "", "nft does not load it: line 2:2-4: Error: syntax error"},
		{"a file", "table inet t {\n\tinclude \"/etc/hostname\"\n}\n", "", "includes a file"},
		{"a file behind a command", "list ruleset; include \"/etc/hostname\"\n", "", "includes a file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := LoadNFT(t.Context(), []byte(c.text))
			switch {
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
				t.Errorf("%s, error %v", out, err)
			case c.fails == "" && (err != nil || !strings.Contains(string(out), c.want)):
				t.Errorf("%s, error %v", out, err)
			}
		})
	}
}
