package excerpt

import (
	"fmt"
	"net/netip"
	"strings"

	"packetwalk.dev/internal/capture/pastedtext"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// virtualServices reads what ipvsadm lists.
func (rd *reader) virtualServices(b pastedtext.Block) error {
	services := []snapshot.VirtualService{} // which were read, if none is there
	for line := range strings.Lines(string(b.Text)) {
		m := pastedtext.IPVSService.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		var v snapshot.VirtualService
		if m[1] == "FWM" {
			if _, err := fmt.Sscanf(m[2], "%d", &v.Mark); err != nil {
				return fmt.Errorf("mark %q: %w", m[2], err)
			}
		} else {
			local, err := netip.ParseAddrPort(m[2])
			if err != nil {
				return fmt.Errorf("service: %w (list them with ipvsadm -Ln)", err)
			}
			if v.Protocol, err = packet.ParseProtocol(strings.ToLower(m[1])); err != nil {
				return err
			}
			v.Local = local
		}
		services = append(services, v)
	}
	rd.Host.VirtualServices = append(services, rd.Host.VirtualServices...)
	return nil
}
