package nodes

import (
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestAgentFaults: what the nodes' agents cannot do is said once, with the number of nodes.
func TestAgentFaults(t *testing.T) {
	got := agentFaults([]faultReport{{[]string{"sync IPv4: no", "watch services: down"}}, {}, {[]string{"watch services: down"}}})
	want := []string{"packetwalk-node of 1 of 3 nodes: sync IPv4: no", "packetwalk-node of 2 of 3 nodes: watch services: down"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestOrphans: a table that stayed is told where another service proxy is wanted, and not while the lab restarts the agent that keeps it.
func TestOrphans(t *testing.T) {
	kerneltest.NeedRoot(t)
	for proxy, want := range map[string]int{"kube-proxy": 1, "none": 1, "packetwalk": 0} {
		t.Run(proxy, func(t *testing.T) {
			ns := netnstest.Create(t, filepath.Join(t.TempDir(), "node"))
			netnstest.Run(t, ns, "nft", "add", "table", "ip", "packetwalk-services")
			env := lifecycle.NewEnv("", layout.Binaries{}, slog.New(slog.DiscardHandler), func(lifecycle.Step) {})
			is, errs := cluster.Parse(nil, []byte("spec: {serviceProxy: {implementation: "+proxy+", backend: nftables}}"))
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			env.SetCluster(is)
			l := &Nodes{Env: env, all: []*Node{{Node: is.Nodes()[0], ns: ns}}}
			if told := l.orphans(); len(told) != want {
				t.Errorf("%q, want %d", told, want)
			}
		})
	}
}
