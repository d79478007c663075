package walk

import "packetwalk.dev/internal/model/packet"

// The lengths of headers without options, in bytes.
const (
	tcpHeader  = 20
	icmpHeader = 8
	// The option with the maximum segment size, which every SYN of Linux has, also one that answers a SYN without options.
	maximumSegmentSize = 4
	maxQuote           = 576  // length of an ICMP error (RFC 1812 section 4.3.2.3)
	maxQuote6          = 1280 // and of one of IPv6 (RFC 4443 section 2.4)
)

func ipHeader(ipv6 bool) int {
	if ipv6 {
		return 40
	}
	return 20
}

// synLength returns the length of a SYN, or of the answer to one with the same options: what sysctls leave of the four that Linux sends
// (tcp_syn_options, net/ipv4/tcp_output.c).
func (m *machine) synLength(ipv6 bool) int {
	const timestamps, selectiveAcknowledgement, windowScale = 12, 4, 4
	n := ipHeader(ipv6) + tcpHeader + maximumSegmentSize
	switch {
	case m.sysctl(true, "net.ipv4.tcp_timestamps"):
		n += timestamps // has room for selective acknowledgement
	case m.sysctl(true, "net.ipv4.tcp_sack"):
		n += selectiveAcknowledgement
	}
	if m.sysctl(true, "net.ipv4.tcp_window_scaling") {
		n += windowScale
	}
	return n
}

// answerLength returns the length of what answers a packet; 0 where it is not known: how much a program sends back, or which options a SYN
// had.
func (m *machine) answerLength(p *packet.Packet, refused, echoes bool) int {
	switch {
	case p.Protocol == packet.TCP && refused:
		return ipHeader(p.IsIPv6()) + tcpHeader // tcp_v4_send_reset
	case p.Protocol == packet.TCP && p.Length == ipHeader(p.IsIPv6())+tcpHeader:
		return p.Length + maximumSegmentSize // tcp_synack_options
	case p.Protocol == packet.TCP && p.Length == m.synLength(p.IsIPv6()), p.Protocol == packet.ICMP, p.Protocol == packet.ICMPv6, echoes:
		return p.Length
	}
	return 0
}

// errorLength returns the length of an ICMP error about a packet, which quotes as much of it as there is room for (__icmp_send,
// icmp6_send).
func errorLength(p *packet.Packet) int {
	most := maxQuote
	if p.IsIPv6() {
		most = maxQuote6
	}
	if p.Length == 0 {
		return 0
	}
	return min(ipHeader(p.IsIPv6())+icmpHeader+p.Length, most)
}
