package virtualnode

import (
	"os"
	"testing"

	"packetwalk.dev/internal/lab/layout"
)

// TestAzureToken shows that the token is created once, and that an empty file is an error, because it would let every client in.
func TestAzureToken(t *testing.T) {
	d := layout.Dir(t.TempDir())
	if err := os.Mkdir(d.Path("pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	token, err := d.AzureToken()
	if again, errAgain := d.AzureToken(); err != nil || errAgain != nil || token == "" || again != token {
		t.Errorf("%q %v, and then %q %v", token, err, again, errAgain)
	}
	if err := os.WriteFile(d.Path("pki", "azure-token"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if token, err := d.AzureToken(); err == nil {
		t.Errorf("an empty file is token %q", token)
	}
}
