package nodes

import (
	"strings"
	"testing"
)

// TestWroteAll: the rules of a family are waited for where the service proxy has been asked for them.
func TestWroteAll(t *testing.T) {
	const (
		queued4  = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"} 1.7e+09\n"
		queued6  = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv6\"} 1.7e+09\n"
		written4 = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1.7e+09\n"
		written6 = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"} 1.7e+09\n"
	)
	for _, c := range []struct {
		name, metrics string
		want          bool
	}{
		{"no answer", "", false},
		{"nothing written", queued4, false},
		{"IPv4 alone", queued4 + written4, true},
		{"IPv6 alone", queued6 + written6, true},
		{"IPv6 not written", queued4 + queued6 + written4, false},
		{"IPv4 not written", queued4 + queued6 + written6, false},
		{"with more labels", strings.ReplaceAll(queued4+queued6+written4, "}", ",node=\"n\"}"), false},
		{"both", queued4 + queued6 + written4 + written6, true},
	} {
		if got := wroteAll([]byte("# HELP\n" + c.metrics)); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
