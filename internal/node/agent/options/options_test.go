package options

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/node/agent/iptablescmd"
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
		if got := o.Config(service.IPv4).LocalhostNodePorts; got != want {
			t.Errorf("%s: %v, want %v", cidrs, got, want)
		}
	}
}

// TestKubenetRules shows claim B7, to the letter, and kubelet's way to have no such rule.
func TestKubenetRules(t *testing.T) {
	for cidr, want := range map[string][]string{
		"192.168.0.0/16": {
			"-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
			`! -d 192.168.0.0/16 -m comment --comment "kubenet: SNAT for outbound traffic from cluster" -m addrtype ! --dst-type LOCAL -j MASQUERADE`,
		},
		"0.0.0.0/0": {"-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"},
	} {
		o := Defaults()
		o.NonMasquerade = netip.MustParsePrefix(cidr)
		var got []string
		for _, r := range o.NodeRules().Postrouting {
			got = append(got, r.Spec())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", cidr, diff)
		}
	}
}

func TestVariants(t *testing.T) {
	for _, variant := range []string{iptablescmd.VariantInstalled, iptablescmd.VariantNFT, iptablescmd.VariantLegacy} {
		o := Defaults()
		if o.IPTablesVariant = variant; o.Validate() != nil {
			t.Errorf("%q is refused", variant)
		}
	}
	o := Defaults()
	if o.IPTablesVariant = "ebtables"; o.Validate() == nil {
		t.Error("an unknown variant is accepted")
	}
}
