package main

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/node/service"
)

func TestFlags(t *testing.T) {
	o, _, err := flags([]string{
		"--kubeconfig=/k", "--hostname-override=n", "--cluster-cidr=10.1.0.0/16,fd00::/64", "--ip-families=IPv4,IPv6", "--proxy-rules=1.11",
		"--proxy-mode=iptables", "--node-masquerade-exclude=10.0.0.0/8", "--docker-bridge-cidr=none", "--iptables-sync-period=1m",
		"--metrics-bind-address=",
	})
	if err != nil {
		t.Fatal(err)
	}
	if o.Kubeconfig != "/k" || o.NodeName != "n" || o.Rules != "1.11" || o.SyncPeriod != time.Minute || o.MetricsAddress != "" ||
		o.HealthzAddress != "0.0.0.0:10256" {
		t.Errorf("got %+v", o)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/64")}; !slices.Equal(o.ClusterCIDRs, want) {
		t.Errorf("cluster ranges %v", o.ClusterCIDRs)
	}
	if !slices.Equal(o.Families, []service.Family{service.IPv4, service.IPv6}) || o.DockerBridge.IsValid() || len(o.NodeMasquerade) != 1 {
		t.Errorf("got %+v", o)
	}
	if o, _, err := flags([]string{"--node-masquerade-exclude="}); err != nil || o.NodeMasquerade != nil {
		t.Errorf("empty list: %v, %v", o.NodeMasquerade, err)
	}
	if o, _, err := flags([]string{"--docker-bridge-cidr=172.17.0.1/16"}); err != nil || o.DockerBridge.Bits() != 16 {
		t.Errorf("the bridge's own address: %v, %v", o.DockerBridge, err)
	}
}

func TestBadFlagsSayWhatToWrite(t *testing.T) {
	for arg, want := range map[string]string{
		"--cluster-cidr=10.1.2.3/16": "write 10.1.0.0/16",
		"--cluster-cidr=pods":        "write it as 10.0.0.0/8",
		"--ip-families=4":            "want IPv4, IPv6 or both",
		"--non-masquerade-cidr=":     "is not one range",
		"--nonsense":                 "not defined",
		"now":                        "all settings are flags",
	} {
		if _, _, err := flags([]string{arg}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

func TestExitStatus(t *testing.T) {
	for arg, want := range map[string]int{"--version": 0, "--help": 0, "--nonsense": 2, "--proxy-rules=0.1": 2,
		"--kubeconfig=/no/such/file": 1} {
		if got := run([]string{arg}); got != want {
			t.Errorf("%s: exit status %d, want %d", arg, got, want)
		}
	}
}
