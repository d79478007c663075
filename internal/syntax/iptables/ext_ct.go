package iptables

import (
	"strconv"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

const ctOptions = "notrack=0 helper ctevents expevents zone zone-orig zone-reply timeout"

var ctTarget = targetExtension{
	options: spec(ctOptions),
	lower:   lowerCT,
	listed:  (*restReader).ct,
}

var notrackTarget = targetExtension{
	lower: func(*lowerer, *Target) netfilter.Statement { return &netfilter.SetTracking{NoTrack: true} },
}

var zoneDirections = map[string]packet.ZoneDirection{"zone-orig": packet.ZoneOriginal, "zone-reply": packet.ZoneReply}

// lowerCT lowers CT: helpers, events and timeouts do not change a packet's way.
func lowerCT(_ *lowerer, t *Target) netfilter.Statement {
	s := &netfilter.SetTracking{}
	note := true
	for i := range t.Options {
		switch o := &t.Options[i]; o.Name {
		case "notrack":
			s.NoTrack, note = true, false
		case "zone", "zone-orig", "zone-reply":
			n, err := strconv.ParseUint(o.arg(), 0, 16)
			if s.ZoneMark = o.arg() == "mark"; err != nil && !s.ZoneMark {
				return nil
			}
			note = false
			s.Zone = packet.Zone{ID: uint16(n), Only: zoneDirections[o.Name]}
		case "helper", "ctevents", "expevents", "timeout":
		default:
			return nil
		}
	}
	if note {
		return &netfilter.Note{Words: "set how the connection is tracked", Tracks: true}
	}
	return s
}

func (l *restReader) ct(t *Target) bool {
	if l.lit("NOTRACK") {
		t.Name = "NOTRACK" // the same target by its older name, which iptables-save prints
		return true
	}
	if !l.lit("CT") {
		return false
	}
	return t.readOwn(l, spec(ctOptions))
}
