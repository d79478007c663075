package nodes

import (
	"slices"
	"testing"
)

// TestAgentFaults: what the nodes' agents cannot do is said once, with the number of nodes.
func TestAgentFaults(t *testing.T) {
	got := agentFaults([]faultReport{{[]string{"sync IPv4: no", "watch services: down"}}, {}, {[]string{"watch services: down"}}})
	want := []string{"packetwalk-node of 1 of 3 nodes: sync IPv4: no", "packetwalk-node of 2 of 3 nodes: watch services: down"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
