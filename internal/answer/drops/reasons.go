package drops

import (
	"strings"

	"packetwalk.dev/internal/model/witness"
)

// reason holds the meaning of one of the kernel's reasons.
type reason struct {
	words  string
	advice string // what to do; "" where the words say it
	// isRule says that a rule dropped the packet, which a walk names; isRoute that a route or a check of IP did, of which a walk says more; and
	// isRefusal that no socket took it.
	isRule, isRoute, isRefusal bool
}

// walks reports whether a walk can show more than the words say.
func (r *reason) walks() bool { return r.isRule || r.isRoute || r.isRefusal }

// unspecified are the functions that drop without a reason of their own, and what they mean.
var unspecified = map[string]reason{
	"ip_error":     {words: "the route to the destination drops it", isRoute: true},
	"ip_forward":   {words: "it could not be forwarded", isRoute: true},
	"ip6_forward":  {words: "it could not be forwarded", isRoute: true},
	"ip6_pkt_drop": {words: "the route to the destination drops it", isRoute: true},
	"dst_discard":  {words: "the route to the destination drops it", isRoute: true},
	"nft_do_chain": {words: "a netfilter rule dropped it", isRule: true},
	"nf_hook_slow": {words: "a netfilter rule dropped it", isRule: true},
}

// reasonOf returns what the kernel's reason means; zero where that is not known.
func reasonOf(d *witness.Drop) reason {
	if d.Reason == "" || d.Reason == notSpecified {
		return unspecified[d.Function]
	}
	return reasons[d.Reason]
}

// notSpecified is the reason of drops to which the kernel gives no other.
const notSpecified = "NOT_SPECIFIED"

// IsLoss reports whether a packet was lost. Those that TCP and sockets throw away without a reason have done their work: a segment for a
// connection in TIME_WAIT, or what is queued at a socket that closes.
func IsLoss(d *witness.Drop) bool {
	return d.Reason != notSpecified || !strings.HasPrefix(d.Function, "tcp_") && !strings.HasPrefix(d.Function, "sk_") &&
		!strings.HasPrefix(d.Function, "skb_queue")
}

// reasons are the kernel's, by their names without SKB_DROP_REASON_ (include/net/dropreason-core.h, Linux 6.18). Those that are no loss are
// not counted (kernel/dropwatch), and those of protocols that pods do not use are not in the table.
var reasons = map[string]reason{
	"NETFILTER_DROP": {words: "a netfilter rule dropped it", isRule: true,
		advice: "see the rule that the line names; with an unexplained drop, compare 'packetwalk walk' with the rules"},
	"NO_SOCKET":           {words: "no socket listens on the port", isRefusal: true, advice: "start the program, or correct the port"},
	"SOCKET_FILTER":       {words: "a BPF filter of the socket dropped it", advice: "look for SO_ATTACH_FILTER in the program"},
	"SOCKET_RCVBUFF":      {words: "the socket's receive buffer is full", advice: "the program reads too slowly; raise net.core.rmem_max and SO_RCVBUF"},
	"SOCKET_BACKLOG":      {words: "the socket's backlog is full", advice: "the program reads too slowly"},
	"PROTO_MEM":           {words: "the protocol's memory limit is reached", advice: "raise net.ipv4.tcp_mem or udp_mem"},
	"TCP_LISTEN_OVERFLOW": {words: "the listening socket's queue is full", advice: "the program accepts too slowly; raise its backlog and net.core.somaxconn"},
	"TCP_FLAGS":           {words: "TCP flags are wrong in the connection's state"},
	"TCP_ZEROWINDOW":      {words: "the receiver's TCP window is closed", advice: "the program reads too slowly"},
	"TCP_OVERWINDOW":      {words: "TCP data lies beyond the receiver's window"},
	"TCP_CLOSE":           {words: "the TCP connection is closed"},
	"TCP_INVALID_SYN":     {words: "a SYN within a TCP connection"},

	"TCP_INVALID_SEQUENCE":     {words: "the TCP sequence number lies outside of the window"},
	"TCP_INVALID_END_SEQUENCE": {words: "the TCP sequence number lies outside of the window"},
	"TCP_INVALID_ACK_SEQUENCE": {words: "the TCP acknowledgement number is invalid"},
	"TCP_RFC7323_PAWS":         {words: "the TCP timestamp is older than the last one (PAWS)", advice: "hosts behind one NAT address send timestamps of different clocks"},
	"TCP_RFC7323_TW_PAWS":      {words: "the TCP timestamp is older than that of the connection before (PAWS)", advice: "hosts behind one NAT address send timestamps of different clocks"},

	"PKT_TOO_SMALL": {words: "the packet is shorter than its headers say"},
	"TCP_CSUM":      {words: "the TCP checksum is wrong", advice: "check the checksum offloads of tunnels and network cards"},
	"UDP_CSUM":      {words: "the UDP checksum is wrong", advice: "check the checksum offloads of tunnels and network cards"},
	"ICMP_CSUM":     {words: "the ICMP checksum is wrong"},
	"IP_CSUM":       {words: "the IP header's checksum is wrong"},
	"SKB_CSUM":      {words: "the checksum could not be computed"},
	"IP_INHDR":      {words: "the IP header is invalid, or the TTL is used up", isRoute: true, advice: "a TTL that is used up means a loop, or traceroute"},
	"IP_RPFILTER":   {words: "rp_filter: the way back to the source leads through another interface", isRoute: true, advice: "mend the routes, or set net.ipv4.conf.*.rp_filter to 2"},

	"UNICAST_IN_L2_MULTICAST":  {words: "a unicast packet in a multicast frame"},
	"XFRM_POLICY":              {words: "an IPsec policy dropped it"},
	"IP_NOPROTO":               {words: "the host does not have the IP protocol"},
	"INVALID_PROTO":            {words: "the protocol is invalid at this place"},
	"IP_OUTNOROUTES":           {words: "no route to the destination", isRoute: true},
	"IP_INNOROUTES":            {words: "no route to the destination", isRoute: true},
	"IP_INADDRERRORS":          {words: "the host does not forward, or the address is invalid", isRoute: true, advice: "set net.ipv4.ip_forward to 1 on a router"},
	"IP_LOCAL_SOURCE":          {words: "the source is one of the host's own addresses", isRoute: true},
	"IP_INVALID_SOURCE":        {words: "the source address is invalid (martian)", isRoute: true},
	"IP_LOCALNET":              {words: "an address of 127.0.0.0/8 came in from outside", isRoute: true, advice: "see net.ipv4.conf.*.route_localnet"},
	"IP_INVALID_DEST":          {words: "the destination address is invalid (martian)", isRoute: true},
	"IPV6DISABLED":             {words: "IPv6 is disabled on the interface"},
	"BPF_CGROUP_EGRESS":        {words: "a BPF program of a control group dropped it", advice: "list it with 'bpftool cgroup tree'"},
	"NEIGH_CREATEFAIL":         {words: "the neighbour table is full", advice: "raise net.ipv4.neigh.default.gc_thresh3"},
	"NEIGH_FAILED":             {words: "the next hop does not answer ARP or neighbour solicitations", isRoute: true, advice: "check that the next hop exists and is up"},
	"NEIGH_QUEUEFULL":          {words: "too many packets wait for the next hop's answer", advice: "check that the next hop exists and is up"},
	"NEIGH_DEAD":               {words: "the neighbour entry is gone"},
	"NEIGH_HH_FILLFAIL":        {words: "the frame's header could not be written"},
	"TC_EGRESS":                {words: "a traffic control filter dropped it as it left", advice: "list it with 'tc filter show dev LINK egress'"},
	"TC_INGRESS":               {words: "a traffic control filter dropped it as it came in", advice: "list it with 'tc filter show dev LINK ingress'"},
	"SECURITY_HOOK":            {words: "a security module dropped it"},
	"QDISC_DROP":               {words: "the queueing discipline dropped it", advice: "see 'tc -s qdisc show dev LINK'"},
	"QDISC_OVERLIMIT":          {words: "the queueing discipline's limit is reached", advice: "see 'tc -s qdisc show dev LINK'"},
	"QDISC_CONGESTED":          {words: "the queueing discipline saw congestion", advice: "see 'tc -s qdisc show dev LINK'"},
	"CPU_BACKLOG":              {words: "the processor's backlog queue is full", advice: "raise net.core.netdev_max_backlog"},
	"XDP":                      {words: "an XDP program dropped it", advice: "list it with 'ip link show dev LINK'"},
	"FULL_RING":                {words: "the interface's ring is full"},
	"NOMEM":                    {words: "out of memory"},
	"DEV_READY":                {words: "the interface is down"},
	"DEV_HDR":                  {words: "the frame's header could not be written"},
	"PKT_TOO_BIG":              {words: "the packet is larger than the MTU", isRoute: true, advice: "lower the sender's MTU, or clamp the MSS"},
	"DUP_FRAG":                 {words: "the fragment came twice"},
	"FRAG_REASM_TIMEOUT":       {words: "fragments were missing when the time to reassemble them was over"},
	"FRAG_TOO_FAR":             {words: "too many other fragments came in between"},
	"UNHANDLED_PROTO":          {words: "no handler for the protocol"},
	"VXLAN_INVALID_HDR":        {words: "the VXLAN header is invalid"},
	"VXLAN_VNI_NOT_FOUND":      {words: "no VXLAN interface has the network identifier"},
	"NO_TX_TARGET":             {words: "no port to send it to"},
	"IP_TUNNEL_ECN":            {words: "ECN bits of the tunnel and its packet contradict each other"},
	"LOCAL_MAC":                {words: "the source MAC is one of the host's own"},
	"MAC_INVALID_SOURCE":       {words: "the source MAC is invalid"},
	"BRIDGE_INGRESS_STP_STATE": {words: "the bridge port does not forward yet (spanning tree)"},
	"RECURSION_LIMIT":          {words: "the packet went through too many stacked interfaces"},
}
