package lab

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/lab/cluster"
)

// TestNotEnforced: AKS enforces policies where it has Calico, so a lab with Calico's IPPools does not claim to be like AKS.
func TestNotEnforced(t *testing.T) {
	for engine, want := range map[cluster.Policy]string{
		cluster.PolicyNone:   "as on AKS without one",
		cluster.PolicyCalico: "unlike on AKS with Calico",
	} {
		t.Run(string(engine), func(t *testing.T) {
			if got := notEnforced(engine); !strings.HasSuffix(got, ", "+want) {
				t.Errorf("got %q, want %q at the end", got, want)
			}
		})
	}
}
