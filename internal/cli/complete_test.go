//go:build linux

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestComplete: what the shell asks for, by cobra's command __complete.
func TestComplete(t *testing.T) {
	text := filepath.Join(t.TempDir(), "rules.txt")
	if err := os.WriteFile(text, []byte("*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ line, want string }{
		{"status -o ", "wide\njson\nyaml\n"},
		{"walk -o ", "html\njson\nmermaid\npcapng\nshort\nsvg\ntext\nwide\n"},
		{"walk --proto ", "tcp\nudp\nicmp\n"},
		{"tour azure-c", "azure-cni\n"},
		{"walk --snapshot " + text + " --from no", "node/node\n"},
		{"list -o ", "json\n"},
	} {
		t.Run(c.line, func(t *testing.T) {
			var out, err bytes.Buffer
			Main(append([]string{"__complete"}, strings.Split(c.line, " ")...), Streams{In: os.Stdin, Out: &out, Err: &err})
			if got, _, _ := strings.Cut(out.String(), ":"); got != c.want {
				t.Errorf("%q, want %q; %s", got, c.want, &err)
			}
		})
	}
}
