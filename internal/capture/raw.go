package capture

import (
	"net/netip"
	"time"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
)

// Raw is what the tools of one host printed, before anything is read from it.
type Raw struct {
	Name    string // as [Host.Name]
	Taken   time.Time
	Kernel  string            // release, as uname -r
	Machine string            // whose kernel it is; "" where all hosts are of one machine
	NetNS   uint64            // inode number of the network namespace, which that kernel gave; 0 where not known
	Outputs map[string]Output // by the File of [Dumps]
}

// Output is what one tool printed.
type Output struct {
	Command string // that prints this text; "" for what packetwalk read itself
	Data    []byte
	Error   string // why there is no Data, or not all of it, in the tool's words
	Skipped string // why it was not run: there is nothing to print
}

// Dump is one file of a host in a capture: what makes it and what reads it. Dumping, the manifest and loading all go by the one table.
type Dump struct {
	File string
	Part snapshot.Part
	// Commands are ways to the same text, best first: that whose program is there is run. None for what packetwalk reads from the kernel
	// itself: sysctls, sockets, wires, IPVS, IPsec, agents.
	Commands [][]string
	// Only is a path; where no such file or directory exists, or the file is empty, there is nothing to dump.
	Only string
	// Later says that captures of older versions do not have the file.
	Later bool
	// AlsoIn is the file that shows the same, if not all of its meaning: where that was read, nothing is unknown without this one.
	AlsoIn string
	// load reads the text into the host; an error makes the part missing.
	load func(*Loader, []byte) error
}

// Names of the files that packetwalk makes itself.
const (
	SysctlsFile   = "sysctls.txt"    // lines "net.ipv4.ip_forward = 1", as sysctl(8) prints them
	ListenersFile = "listeners.json" // []Listener
	WiresFile     = "wires.json"     // []Wire
	AttachedFile  = "attached.json"  // []Attachment; captures of before have none
	QdiscsFile    = "qdiscs.json"    // []Qdisc; captures of before have none
	ProgramsFile  = "programs.json"  // []snapshot.Program; captures of before have none
	IPVSFile      = "ipvs.json"      // []snapshot.VirtualService; captures of before have none
	IPsecFile     = "ipsec.json"     // []snapshot.IPsecPolicy; captures of before have none
	RecentFile    = "recent.json"    // []RecentList; captures of before have none
	AgentsFile    = "agents.json"    // []snapshot.Agent; captures of before have none
)

// RulesetFile is nft's rule set.
const RulesetFile = "nft.json"

const (
	linksFile     = "ip-link.json"
	nftChainsFile = "nft-chains.txt"
)

// Dumps are all files of a host, in the order in which they are loaded: links come first, because others refer to them.
//
// iptables: the nft variant's rules are found where the plain name belongs to it (Debian 10 and later, Ubuntu 20.10 and later); the
// legacy tables are looked at only where the kernel has some in the namespace, because asking for them would make them. The same goes for
// ebtables, whose legacy program loads its modules, which then cost every bridge of the machine time.
var Dumps = []Dump{
	{File: linksFile, Part: snapshot.Links, Commands: [][]string{{"ip", "-d", "-j", "link", "show"}}, load: loadLinks},
	{File: WiresFile, Part: snapshot.Wires, load: loadWires},
	{File: AttachedFile, Part: snapshot.Programs, Only: "/proc/self", Later: true, load: loadAttached},
	{File: QdiscsFile, Part: snapshot.Programs, Only: "/proc/self", Later: true, load: loadQdiscs},
	{File: "ip-address.json", Part: snapshot.Addresses, Commands: [][]string{{"ip", "-d", "-j", "address", "show"}}, load: loadAddresses},
	{File: "ip-route.json", Part: snapshot.Routes, Commands: [][]string{{"ip", "-d", "-j", "-4", "route", "show", "table", "all"}},
		load: loadRoutes},
	{File: "ip-6-route.json", Part: snapshot.Routes, Only: "/proc/sys/net/ipv6",
		Commands: [][]string{{"ip", "-d", "-j", "-6", "route", "show", "table", "all"}}, load: loadRoutes},
	{File: "ip-rule.json", Part: snapshot.Policy, Commands: [][]string{{"ip", "-d", "-j", "-4", "rule", "show"}}, load: loadPolicy(false)},
	{File: "ip-6-rule.json", Part: snapshot.Policy, Only: "/proc/sys/net/ipv6",
		Commands: [][]string{{"ip", "-d", "-j", "-6", "rule", "show"}}, load: loadPolicy(true)},
	{File: "ip-neighbour.json", Part: snapshot.Neighbours, Commands: [][]string{{"ip", "-d", "-j", "neighbour", "show"}},
		load: loadNeighbours(false)},
	{File: "ip-neighbour-proxy.json", Part: snapshot.Neighbours, Commands: [][]string{{"ip", "-d", "-j", "neighbour", "show", "proxy"}},
		load: loadNeighbours(true)},
	{File: "bridge-fdb.json", Part: snapshot.FDB, Commands: [][]string{{"bridge", "-d", "-j", "fdb", "show"}}, load: loadFDB},
	{File: SysctlsFile, Part: snapshot.Sysctls, load: loadSysctls},
	{File: "iptables-save.txt", Part: snapshot.Rules, Commands: [][]string{{"iptables-nft-save", "-c"}, {"iptables-save", "-c"}},
		AlsoIn: RulesetFile, load: loadIPTables(netfilter.IPv4, "iptables-legacy-save.txt")},
	{File: "iptables-legacy-save.txt", Part: snapshot.Rules, Only: "/proc/thread-self/net/ip_tables_names",
		Commands: [][]string{{"iptables-legacy-save", "-c"}, {"iptables-save", "-c"}}, load: loadIPTables(netfilter.IPv4, "")},
	{File: "ip6tables-save.txt", Part: snapshot.RulesIPv6, Commands: [][]string{{"ip6tables-nft-save", "-c"}, {"ip6tables-save", "-c"}},
		AlsoIn: RulesetFile, load: loadIPTables(netfilter.IPv6, "ip6tables-legacy-save.txt")},
	{File: "ip6tables-legacy-save.txt", Part: snapshot.RulesIPv6, Only: "/proc/thread-self/net/ip6_tables_names",
		Commands: [][]string{{"ip6tables-legacy-save", "-c"}, {"ip6tables-save", "-c"}}, load: loadIPTables(netfilter.IPv6, "")},
	{File: "ebtables-save.txt", Part: snapshot.Bridge, Commands: [][]string{{"ebtables-nft-save"}, {"ebtables-save"}},
		AlsoIn: RulesetFile, load: loadEBTables},
	{File: "ebtables-legacy-save.txt", Part: snapshot.Bridge, Only: "/sys/module",
		Commands: [][]string{{"ebtables-legacy-save"}, {"ebtables-save"}}, load: loadEBTables},
	{File: RulesetFile, Part: snapshot.NFT, Commands: [][]string{{"nft", "-j", "-a", "list", "ruleset"}}, load: loadNFT},
	{File: nftChainsFile, Part: snapshot.NFT, Only: "/proc/sys/net/netfilter", Commands: [][]string{{"nft", "list", "chains"}},
		AlsoIn: RulesetFile, load: loadNFTDevices},
	{File: "ipset.txt", Part: snapshot.IPSets, Commands: [][]string{{"ipset", "save"}}, load: loadIPSets},
	{File: "conntrack.txt", Part: snapshot.Flows, Commands: [][]string{{"conntrack", "-L", "-f", "ipv4", "-o", "extended"}}, load: loadFlows},
	{File: "conntrack-6.txt", Part: snapshot.Flows, Commands: [][]string{{"conntrack", "-L", "-f", "ipv6", "-o", "extended"}},
		load: loadFlows},
	{File: ListenersFile, Part: snapshot.Listeners, load: loadListeners},
	{File: ProgramsFile, Part: snapshot.SocketPrograms, Only: "/proc/self", Later: true, load: loadPrograms},
	{File: IPVSFile, Part: snapshot.IPVS, Only: "/proc/self", Later: true, load: loadIPVS},
	{File: RecentFile, Part: snapshot.RecentLists, Only: "/proc/self", Later: true, load: loadRecent},
	{File: IPsecFile, Part: snapshot.IPsec, Only: "/proc/self", Later: true, load: loadIPsec},
	{File: AgentsFile, Part: snapshot.Agents, Only: "/proc/self", Later: true, load: loadAgents},
}

// SysctlFiles are the settings that decide about packets, as paths below /proc/sys; a "*" stands for one element (Documentation/networking/
// ip-sysctl.rst, nf_conntrack-sysctl.rst of the kernel).
var SysctlFiles = []string{
	"net/ipv4/ip_forward",
	"net/ipv4/ip_default_ttl",
	"net/ipv4/ip_local_port_range",
	"net/ipv4/ip_local_reserved_ports",
	"net/ipv4/ip_nonlocal_bind",
	"net/ipv4/ip_early_demux",
	"net/ipv4/fib_multipath_hash_policy",
	"net/ipv4/fib_multipath_hash_fields",
	"net/ipv4/fib_multipath_use_neigh",
	"net/ipv4/fwmark_reflect",
	"net/ipv4/tcp_fwmark_accept",
	"net/ipv4/tcp_timestamps",
	"net/ipv4/tcp_sack",
	"net/ipv4/tcp_window_scaling",
	"net/ipv4/icmp_echo_ignore_all",
	"net/ipv6/anycast_src_echo_reply",
	"net/ipv4/icmp_echo_ignore_broadcasts",
	"net/ipv4/icmp_errors_use_inbound_ifaddr",
	"net/ipv4/tcp_l3mdev_accept",
	"net/ipv4/udp_l3mdev_accept",
	"net/ipv4/conf/*/forwarding",
	"net/ipv4/conf/*/rp_filter",
	"net/ipv4/conf/*/accept_local",
	"net/ipv4/conf/*/accept_source_route",
	"net/ipv4/conf/*/route_localnet",
	"net/ipv4/conf/*/src_valid_mark",
	"net/ipv4/conf/*/proxy_arp",
	"net/ipv4/conf/*/proxy_arp_pvlan",
	"net/ipv4/conf/*/arp_ignore",
	"net/ipv4/conf/*/arp_announce",
	"net/ipv4/conf/*/arp_filter",
	"net/ipv4/conf/*/arp_accept",
	"net/ipv4/conf/*/medium_id",
	"net/ipv4/conf/*/drop_unicast_in_l2_multicast",
	"net/ipv4/conf/*/drop_gratuitous_arp",
	"net/ipv4/conf/*/disable_policy",
	"net/ipv4/conf/*/send_redirects",
	"net/ipv4/conf/*/shared_media",
	"net/ipv4/conf/*/accept_redirects",
	"net/ipv4/conf/*/log_martians",
	"net/ipv4/neigh/*/proxy_delay",
	"net/ipv6/bindv6only",
	"net/ipv6/ip_nonlocal_bind",
	"net/ipv6/fib_multipath_hash_policy",
	"net/ipv6/fwmark_reflect",
	"net/ipv6/icmp/echo_ignore_all",
	"net/ipv6/conf/*/disable_ipv6",
	"net/ipv6/conf/*/forwarding",
	"net/ipv6/conf/*/hop_limit",
	"net/ipv6/conf/*/proxy_ndp",
	"net/ipv6/conf/*/accept_source_route",
	"net/ipv6/conf/*/disable_policy",
	"net/ipv6/neigh/*/proxy_delay",
	"net/bridge/bridge-nf-call-arptables",
	"net/bridge/bridge-nf-call-iptables",
	"net/bridge/bridge-nf-call-ip6tables",
	"net/bridge/bridge-nf-filter-pppoe-tagged",
	"net/bridge/bridge-nf-filter-vlan-tagged",
	"net/bridge/bridge-nf-pass-vlan-input-dev",
	"net/netfilter/nf_conntrack_tcp_loose",
	"net/netfilter/nf_conntrack_tcp_be_liberal",
	"net/netfilter/nf_conntrack_tcp_ignore_invalid_rst",
	"net/netfilter/nf_conntrack_checksum",
	"net/netfilter/nf_conntrack_helper",
	"net/netfilter/nf_conntrack_max",
	"net/netfilter/nf_conntrack_count",
	"net/netfilter/nf_hooks_lwtunnel",
	"net/netfilter/nf_log/*",
}

// Attachment is a program at a link, which may do anything with the link's packets. In older captures it may also be a filter of tc.
type Attachment struct {
	Link string `json:"link"`
	Out  bool   `json:"out,omitempty"` // that leave by it; else those that come in
	What string `json:"what"`          // "a BPF program (tcx)"
	// Program is the program, if it is one whose name and ID were read.
	Program *snapshot.Program `json:"program,omitempty"`
}

// Wire is a link whose other end is another link: one end of a veth pair. It is the content of wires.json.
type Wire struct {
	Link      string `json:"link"`
	Index     int    `json:"index"`
	PeerIndex int    `json:"peerIndex"`          // in its own namespace
	NSID      *int   `json:"nsid,omitempty"`     // this namespace's id of the peer's; nil for the same namespace
	NetNS     uint64 `json:"netns,omitempty"`    // inode number of the peer's namespace; 0 where not found
	Host      string `json:"host,omitempty"`     // the host that has that namespace, where it was known
	PeerLink  string `json:"peerLink,omitempty"` // name of the peer; "" where the kernel did not tell
}

// RecentList is a list of recent addresses (iptables' match "recent").
type RecentList struct {
	List    string        `json:"list"`
	Entries []RecentEntry `json:"entries"`
}

// RecentEntry is an address in a list.
type RecentEntry struct {
	Address netip.Addr `json:"address"`
	Seen    []int64    `json:"seen"` // how long ago packets of it were noted, in milliseconds
}
