package lab

import (
	"os"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/status"
)

// TestAzureToken shows that the token is created once, and that an empty file is an error, because it would let every client in.
func TestAzureToken(t *testing.T) {
	d := layout.Dir(t.TempDir())
	if err := os.Mkdir(d.Path("pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	token, err := azureToken(d)
	if again, errAgain := azureToken(d); err != nil || errAgain != nil || token == "" || again != token {
		t.Errorf("%q %v, and then %q %v", token, err, again, errAgain)
	}
	if err := os.WriteFile(d.Path("pki", "azure-token"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if token, err := azureToken(d); err == nil {
		t.Errorf("an empty file is token %q", token)
	}
}

// TestGroupProblem: status counts a group that does not come up among what is broken.
func TestGroupProblem(t *testing.T) {
	s := status.Status{Ready: true, ContainerGroups: []status.ContainerGroup{{Name: "well", ProxyPid: -1},
		{Name: "default-p", State: "Pending", Error: "no free addresses"}}}
	found := s.DerivedProblems()
	if !slices.ContainsFunc(found, func(p string) bool {
		return strings.Contains(p, "default-p") && strings.Contains(p, "no free addresses")
	}) || len(found) != 1 {
		t.Errorf("%q", found)
	}
}
