//go:build linux

package nftables

import (
	"net/netip"

	"packetwalk.dev/internal/node/service"
)

// arrange gives each endpoint a slot, from 0 up without a gap, so that as few as can be change: who had one that is still there keeps it.
func arrange(before []netip.AddrPort, endpoints []service.Endpoint) []netip.AddrPort {
	without := make(map[netip.AddrPort]bool, len(endpoints))
	for i := range endpoints {
		without[endpoints[i].Addr] = true
	}
	slots := make([]netip.AddrPort, len(without))
	for i, a := range before[:min(len(before), len(slots))] {
		if without[a] {
			slots[i] = a
			delete(without, a)
		}
	}
	next := 0
	for i := range endpoints { // in the order of the list, so that equal inputs give equal slots
		a := endpoints[i].Addr
		if !without[a] {
			continue
		}
		for slots[next].IsValid() {
			next++
		}
		slots[next] = a
		delete(without, a)
	}
	return slots
}
