package agent

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"packetwalk.dev/internal/node/service"
)

func TestOptionsReportEverythingAtOnce(t *testing.T) {
	o := Defaults()
	o.NodeName, o.Rules, o.Backend, o.MasqueradeBit, o.SyncPeriod = "n", "1.5", "ebpf", 40, 0
	o.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")}
	o.NodeMasquerade = []netip.Prefix{netip.MustParsePrefix("fd00::/8")}
	o.NonMasquerade = netip.MustParsePrefix("fd00::/8")
	o.IPMasqAgent, o.MasqForm, o.MasqConfigMaps, o.MasqResync = true, "v3", nil, time.Millisecond
	err := o.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, flag := range []string{"--proxy-rules", "--proxy-backend", "--iptables-masquerade-bit", "--iptables-sync-period", "--cluster-cidr",
		"--node-masquerade-exclude",
		"--non-masquerade-cidr", "--ip-masq-format", "--ip-masq-configmaps", "--ip-masq-resync-interval"} {
		if !strings.Contains(err.Error(), flag+": ") {
			t.Errorf("%s is not reported in %q", flag, err)
		}
	}
	o = Defaults()
	if err := o.Validate(); err != nil || o.NodeName == "" {
		t.Errorf("defaults: %v", err)
	}
}

func TestLocalhostNodePortsFollowNodePortAddresses(t *testing.T) {
	for cidrs, want := range map[string]bool{"": true, "10.0.0.0/8": false, "127.0.0.0/8": true, "0.0.0.0/0": true, "fd00::/8": true} {
		o := Defaults()
		if cidrs != "" {
			o.NodePortCIDRs = []netip.Prefix{netip.MustParsePrefix(cidrs)}
		}
		if got := o.config(service.IPv4).LocalhostNodePorts; got != want {
			t.Errorf("%s: %v, want %v", cidrs, got, want)
		}
	}
}

func TestServiceCIDRs(t *testing.T) {
	object := func(cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	}
	objects := []*networkingv1.ServiceCIDR{object("10.9.0.0/16", "fd01::/112"), object("10.0.0.0/16"), object("10.9.0.0/16", "nonsense")}
	for f, want := range map[service.Family]string{service.IPv4: "[10.0.0.0/16 10.9.0.0/16]", service.IPv6: "[fd01::/112]"} {
		if got := fmt.Sprint(serviceCIDRs(f, objects)); got != want {
			t.Errorf("%s: %s, want %s", f, got, want)
		}
	}
}
