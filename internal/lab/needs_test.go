package lab

import (
	"context"
	"log/slog"
	"slices"
	"testing"

	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/preflight"
	"packetwalk.dev/internal/lab/status"
)

// TestNeeds: a world needs what it uses, and nothing else.
func TestNeeds(t *testing.T) {
	p := func(needs ...preflight.Need) []preflight.Need {
		return append([]preflight.Need{preflight.Lab}, needs...)
	}
	for _, c := range []struct {
		name, spec string
		want       []preflight.Need
	}{
		{"default", "", p(preflight.IPTablesProxy)},
		{"bridge", "network: {mode: bridge}", p(preflight.PodBridge, preflight.IPTablesProxy)},
		{"transparent", "network: {mode: transparent}", p(preflight.IPTablesProxy)},
		{"transparent with nftables", "network: {mode: transparent}\n  serviceProxy: {backend: nftables}", p(preflight.NFTablesProxy)},
		{"calico", "network: {policy: calico}", p(preflight.IPTablesProxy, preflight.Calico)},
		{"kubenet with kube-proxy", "network: {plugin: kubenet}\n  serviceProxy: {implementation: kube-proxy}",
			p(preflight.PodBridge, preflight.IPTablesProxy)},
		{"no service proxy", "network: {plugin: none}\n  serviceProxy: {implementation: none}", p()},
		{"virtual node", "network: {mode: transparent}\n  serviceProxy: {backend: nftables}\n  virtualNode: {enabled: true}",
			p(preflight.NFTablesProxy, preflight.IPTablesProxy)},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := string(defaultCluster)
			if c.spec != "" {
				source += "spec:\n  " + c.spec + "\n"
			}
			got, err := Needs(layout.Dir(t.TempDir()), []byte(source))
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got %q, %v\nwant %q", got, err, c.want)
			}
		})
	}
}

// TestOptionalFeatures: a lab starts without them, and says at its start and in its status what is off.
func TestOptionalFeatures(t *testing.T) {
	c := lifecycle.NewEnv("", layout.Binaries{}, slog.New(slog.DiscardHandler), func(lifecycle.Step) {})
	var said []string
	c.Progress = func(s lifecycle.Step) { said = append(said, s.Text) }
	l := &optionalFeatures{Env: c, check: func(_ context.Context, needs ...preflight.Need) ([]preflight.Row, error) {
		if slices.Contains(needs, preflight.Lab) {
			t.Error("tries what is not optional")
		}
		return []preflight.Row{
			{Feature: "nft trace", NeededFor: []preflight.Need{preflight.LiveWalk}, Result: preflight.Missing, Cause: "no such file", Remedy: "load it"},
			{Feature: "conntrack", NeededFor: []preflight.Need{preflight.FlowList}, Result: preflight.Works},
		}, nil
	}}
	if err := l.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	var s status.Status
	l.Report(&s)
	want := []string{"walk --live does not work: nft trace: no such file; load it"}
	if !slices.Equal(said, want) || !slices.Equal(s.Warnings, want) {
		t.Errorf("said %q, warnings %q", said, s.Warnings)
	}
}
