package iproute

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"packetwalk.dev/internal/model/fib"
)

// vxlanJSON are the settings of a link of kind vxlan (iproute2: ip/iplink_vxlan.c, vxlan_print_opt). Those that are not here decide nothing
// about packets that have one station as their destination.
type vxlanJSON struct {
	ID            uint32
	Local, Local6 string
	Ports         struct{ Low, High uint16 } `json:"port_range"`
	Port          uint16
	TTL, TOS      text
	Learning      flag
	Checksum      flag `json:"udp_csum"`
	NoChecksum6   flag `json:"udp_zero_csum6_tx"`
	// What is not understood.
	External, VNIFilter, RSC, GBP, GPE flag
}

// parseVXLAN reads them; elsewhere says that what it sends goes out in another namespace.
func parseVXLAN(data json.RawMessage, elsewhere bool) (*fib.VXLAN, error) {
	if len(data) == 0 {
		return nil, nil
	}
	j := vxlanJSON{Learning: true, Checksum: true}
	if err := json.Unmarshal(data, &j); err != nil {
		return nil, err
	}
	v := &fib.VXLAN{
		VNI: j.ID, Port: j.Port, SourcePorts: [2]uint16{j.Ports.Low, j.Ports.High}, Learning: bool(j.Learning),
		TTL: uint8(j.TTL.number(8)), InheritTTL: j.TTL == "" || j.TTL == "inherit", TOS: uint8(j.TOS.number(8)),
	}
	for _, a := range []string{j.Local, j.Local6} {
		if a == "" {
			continue
		}
		var err error
		if v.Local, err = netip.ParseAddr(a); err != nil {
			return nil, fmt.Errorf("vxlan: %w", err)
		}
	}
	v.NoChecksum = v.Local.Is4() && !bool(j.Checksum) || v.Local.Is6() && bool(j.NoChecksum6)
	var unknown []string
	for _, setting := range []struct {
		name string
		set  bool
	}{
		{"external", bool(j.External)}, {"vnifilter", bool(j.VNIFilter)}, {"rsc", bool(j.RSC)}, {"gbp", bool(j.GBP)}, {"gpe", bool(j.GPE)},
		{"an underlay in another namespace", elsewhere},
	} {
		if setting.set {
			unknown = append(unknown, setting.name)
		}
	}
	v.Unknown = strings.Join(unknown, ", ")
	return v, nil
}
