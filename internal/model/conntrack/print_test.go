package conntrack

import (
	"fmt"

	"packetwalk.dev/internal/model/packet"
)

// protocolNames are the names that conntrack(8) prints where they are not packet's own (libnetfilter_conntrack: src/conntrack/snprintf.c).
// All other protocols are "unknown" beside their number.
var protocolNames = map[packet.Protocol]string{
	packet.ICMP: "icmp", packet.TCP: "tcp", packet.UDP: "udp", packet.UDPLite: "udplite", packet.ICMPv6: "icmpv6", packet.SCTP: "sctp",
	packet.DCCP: "dccp", protocolGRE: "gre",
}

// appendFlow appends the flow as "conntrack -L" prints it, without a line's end. How many use it is not known: always 1.
func appendFlow(b []byte, f *packet.Flow) []byte {
	name := protocolNames[f.Original.Protocol]
	if name == "" {
		name = "unknown"
	}
	b = fmt.Appendf(b, "%-8s %d ", name, uint8(f.Original.Protocol))
	if f.Status&packet.Offload == 0 || f.Timeout != 0 {
		b = fmt.Appendf(b, "%d ", f.Timeout)
	}
	if f.State != "" {
		b = append(b, f.State+" "...)
	}
	b = appendTuple(b, &f.Original)
	if f.Zone.Only == packet.ZoneOriginal {
		b = fmt.Appendf(b, "zone-orig=%d ", f.Zone.ID)
	}
	if f.Status&packet.SeenReply == 0 {
		b = append(b, "[UNREPLIED] "...)
	}
	b = appendTuple(b, &f.Reply)
	if f.Zone.Only == packet.ZoneReply {
		b = fmt.Appendf(b, "zone-reply=%d ", f.Zone.ID)
	}
	b = appendMarks(b, f.Status)
	b = fmt.Appendf(b, "mark=%d ", f.Mark)
	if f.Zone.ID != 0 && f.Zone.Only == packet.ZoneBoth {
		b = fmt.Appendf(b, "zone=%d ", f.Zone.ID)
	}
	if f.Helper != "" {
		b = append(b, "helper="+f.Helper+" "...)
	}
	return append(b, "use=1"...)
}

func appendMarks(b []byte, s packet.Status) []byte {
	switch {
	case s&packet.HWOffload != 0:
		b = append(b, "[HW_OFFLOAD] "...)
	case s&packet.Offload != 0:
		b = append(b, "[OFFLOAD] "...)
	}
	if s&packet.Assured != 0 {
		b = append(b, "[ASSURED] "...)
	}
	return b
}

func appendTuple(b []byte, t *packet.Tuple) []byte {
	b = fmt.Appendf(b, "src=%s dst=%s ", t.Source, t.Destination)
	switch {
	case isICMP(t.Protocol):
		return fmt.Appendf(b, "type=%d code=%d id=%s ", t.Type, t.Code, t.SourcePort)
	case t.Protocol == protocolGRE:
		return fmt.Appendf(b, "srckey=0x%x dstkey=0x%x ", t.SourcePort.Number, t.DestinationPort.Number)
	case t.Protocol.HasPorts():
		return fmt.Appendf(b, "sport=%s dport=%s ", t.SourcePort, t.DestinationPort)
	}
	return b
}
