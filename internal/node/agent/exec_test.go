package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/kerneltest"
)

func TestProgramsQuoteTheLineThatFailed(t *testing.T) {
	p := newPrograms(service.IPv4, VariantInstalled)
	p.restore = "false"
	if err := p.Restore(context.Background(), nil); err == nil {
		t.Error("no error")
	}
	p.restore = "no-such-program"
	if err := p.Restore(context.Background(), nil); err == nil || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("got %v", err)
	}
	input := []byte("*nat\n-A X -j Y\nCOMMIT\n")
	for message, want := range map[string]string{
		"iptables-restore v1.8.9 (nf_tables): \nline 2: RULE_APPEND failed": " (line 2: -A X -j Y)",
		"iptables-restore: line 2 failed":                                   " (line 2: -A X -j Y)",
		"Error occurred at line: 2":                                         " (line 2: -A X -j Y)",
		"line 9: what":                                                      "",
		"nothing":                                                           "",
	} {
		if got := failedLine(message, input); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

// agentIn is an agent with nftables, and a namespace for it.
func agentIn(t *testing.T) (*netns.Namespace, *agent) {
	t.Helper()
	kerneltest.NeedRoot(t)
	ns, err := netns.Create(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(); err != nil {
			t.Error(err)
		}
	})
	o := Defaults()
	o.NodeName, o.ServiceProxy, o.Backend, o.DockerBridge = "node0", false, BackendNFTables, netip.Prefix{}
	a, err := newAgent(o, newMetrics(o.Backend), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return ns, a
}

// TestRulesWithoutPrograms: what a service proxy with iptables left behind is a fault where there are no programs to remove it.
func TestRulesWithoutPrograms(t *testing.T) {
	ns, a := agentIn(t)
	for _, of := range []struct {
		program string
		family  service.Family
	}{{"iptables-nft", service.IPv4}, {"ip6tables-nft", service.IPv6}} {
		if err := ns.Do(func() error {
			gone := failingSyncer{err: exec.ErrNotFound}
			if err := a.remove(t.Context(), of.family, gone); err != nil {
				t.Errorf("%v: without rules: %v", of.family, err)
			}
			if err := exec.Command(of.program, "-t", "nat", "-N", "KUBE-SERVICES").Run(); err != nil {
				return err
			}
			if err := a.remove(t.Context(), of.family, gone); err == nil || !strings.Contains(err.Error(), "iptables is not installed") {
				t.Errorf("%v: with rules: %v", of.family, err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
