package serviceproxy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/agent/metrics"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
)

// TestFirstSyncIsQueued: before there are rules, metrics tell of which families there will be some.
func TestFirstSyncIsQueued(t *testing.T) {
	p, registry := newTestProxy(t, options.BackendNFTables, nil)
	p.Families = []service.Family{service.IPv4, service.IPv6}
	for _, f := range p.Families {
		p.Programs = append(p.Programs, iptablescmd.New(f, ""))
	}
	if err := p.addFamilies(); err != nil {
		t.Fatal(err)
	}
	for _, f := range p.Families {
		want := fmt.Sprintf("\nkubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=%q} ", f)
		if !strings.Contains(string(registry.Text()), want) {
			t.Errorf("no %q in\n%s", want, registry.Text())
		}
	}
}

// TestFailuresOfPartOfAChange checks that they are counted as by kube-proxy, also where comparing everything made up for them.
func TestFailuresOfPartOfAChange(t *testing.T) {
	registry := &metrics.Registry{}
	m := NewMetrics(registry, options.BackendIPTables)
	m.synced(service.IPv4, proxy.Result{Full: true, PartialErr: errors.New("refused")}, time.Second, nil)
	for _, name := range []string{"restore_failures", "partial_restore_failures"} {
		want := "kubeproxy_sync_proxy_rules_iptables_" + name + `_total{ip_family="IPv4"} 1` + "\n"
		if !strings.Contains(string(registry.Text()), want) {
			t.Errorf("no %s in\n%s", want, registry.Text())
		}
	}
}
