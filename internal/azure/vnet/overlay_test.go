package vnet_test

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/vnet"
)

// TestAllocateOverlay: NICs get the lowest free parts, keep them, and what a NIC that went had is free again.
func TestAllocateOverlay(t *testing.T) {
	n := vnet.Network{Overlay: netip.MustParsePrefix("10.244.0.0/23"), NICs: []vnet.NIC{{Name: "a"}, {Name: "b"}, {Name: "c"}}}
	allocate := func(nic, want string) {
		t.Helper()
		if err := n.AllocateOverlay(nic, 24); err != nil {
			t.Fatal(err)
		}
		if i, _ := n.NIC(nic); i.Overlay.String() != want {
			t.Errorf("NIC %s has %s, want %s", nic, i.Overlay, want)
		}
	}
	allocate("a", "10.244.0.0/24")
	allocate("b", "10.244.1.0/24")
	allocate("a", "10.244.0.0/24")
	if err := n.AllocateOverlay("c", 24); err == nil || !strings.Contains(err.Error(), "all of 10.244.0.0/23 is in use") {
		t.Errorf("a third part: %v", err)
	}
	n.ReleaseNIC("a")
	allocate("c", "10.244.0.0/24")
	if err := n.AllocateOverlay("a", 24); err == nil {
		t.Error("a NIC that is gone got a part")
	}
}

// TestOverlayValidate: parts lie in the overlay and apart, and the overlay lies in no virtual network.
func TestOverlayValidate(t *testing.T) {
	prefix := netip.MustParsePrefix
	for name, tt := range map[string]struct {
		overlay, a, b string
		want          string
	}{
		"valid":   {"10.244.0.0/16", "10.244.0.0/24", "10.244.1.0/24", ""},
		"overlap": {"10.244.0.0/16", "10.244.0.0/23", "10.244.1.0/24", "10.244.0.0/23 overlaps 10.244.1.0/24 of NIC b-nic"},
		"outside": {"10.244.0.0/16", "10.245.0.0/24", "10.244.1.0/24", "10.245.0.0/24 is outside the overlay 10.244.0.0/16"},
		"in VNet": {"10.224.128.0/17", "10.224.128.0/24", "10.224.129.0/24", "overlaps virtual network v"},
	} {
		t.Run(name, func(t *testing.T) {
			n := vnet.Network{
				Overlay: prefix(tt.overlay), VNets: []vnet.VNet{{Name: "v", AddressPrefixes: []netip.Prefix{prefix("10.224.0.0/16")},
					Subnets: []vnet.Subnet{{Name: "s", Prefix: prefix("10.224.0.0/24")}}}},
			}
			for i, part := range []string{tt.a, tt.b} {
				if _, err := n.AllocateNIC([]string{"a", "b"}[i], "v", "s", 1); err != nil {
					t.Fatal(err)
				}
				n.NICs[i].Overlay = prefix(part)
			}
			err := n.Validate()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
