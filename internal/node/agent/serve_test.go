package agent

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/proxyconfig"
)

// TestServes: the addresses that kube-proxy has on its metrics port; and one that is taken is a fault, or the end.
func TestServes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	free, err := net.Listen("tcp", "127.0.0.77:0") // clients of other tests have ports of 127.0.0.1
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	configuration := &proxyconfig.Configuration{Mode: proxyconfig.ModeNFTables}
	configuration.APIVersion, configuration.Kind = proxyconfig.APIVersion, proxyconfig.Kind
	o := options.Defaults()
	o.Backend, o.MetricsAddress, o.HealthzAddress, o.Configz = options.BackendNFTables, address, taken.Addr().String(), configuration
	a := newAgent(o, slog.New(slog.DiscardHandler))
	a.faults = report.NewFaults(discard, 0)
	ctx, cancel := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer func() { cancel(); beside.Wait() }()
	if err := a.serve(ctx, &beside); err != nil {
		t.Fatal(err)
	}
	get := func(path string) string {
		r, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Body.Close() }()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	if got := get("/proxyMode"); got != "nftables" {
		t.Errorf("mode %q", got)
	}
	if got := get(report.FaultsPath); !strings.Contains(got, "--healthz-bind-address") {
		t.Errorf("faults %s; want the address that is taken", got)
	}
	var configz map[string]json.RawMessage
	if err := json.Unmarshal([]byte(get("/configz")), &configz); err != nil {
		t.Fatal(err)
	}
	if c, strange, err := proxyconfig.Read(configz[proxyconfig.Group]); err != nil || len(strange) > 0 || c.Mode != proxyconfig.ModeNFTables {
		t.Errorf("configz is no file of kube-proxy's: %v, %v, %s", err, strange, configz)
	}
	a.BindHardFail, a.MetricsAddress = true, ""
	if err := a.serve(ctx, &beside); err == nil || !strings.Contains(err.Error(), "--healthz-bind-address") {
		t.Errorf("an address that is taken, with --bind-address-hard-fail: %v", err)
	}
}
