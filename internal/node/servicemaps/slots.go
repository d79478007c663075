package servicemaps

import (
	"net/netip"

	"packetwalk.dev/internal/node/service"
)

// arrange gives each endpoint a slot, from 0 up without a gap, so that as few as can be change: who had one keeps it, new ones take those
// that became free, and what is free then is filled from the end.
func arrange(before []netip.AddrPort, endpoints []service.Endpoint) []netip.AddrPort {
	isNew := make(map[netip.AddrPort]bool, len(endpoints))
	for i := range endpoints {
		isNew[endpoints[i].Addr] = true
	}
	slots := make([]netip.AddrPort, len(before), max(len(before), len(endpoints)))
	for i, a := range before {
		if isNew[a] {
			slots[i] = a
			delete(isNew, a)
		}
	}
	next := 0
	for i := range endpoints { // in the order of the list, so that equal inputs give equal slots
		a := endpoints[i].Addr
		if !isNew[a] {
			continue
		}
		for next < len(slots) && slots[next].IsValid() {
			next++
		}
		if next == len(slots) {
			slots = append(slots, a)
		} else {
			slots[next] = a
		}
	}
	return dense(slots)
}

// dense fills free slots with the last ones.
func dense(slots []netip.AddrPort) []netip.AddrPort {
	for i := 0; i < len(slots); i++ {
		for len(slots) > i && !slots[len(slots)-1].IsValid() {
			slots = slots[:len(slots)-1]
		}
		if i < len(slots) && !slots[i].IsValid() {
			slots[i] = slots[len(slots)-1]
			slots = slots[:len(slots)-1]
		}
	}
	return slots
}
