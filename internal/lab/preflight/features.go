package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/kernel/netns"
)

// feature is something of the kernel, or a program, and what needs it. It is tried by a call, or by what a program reads from its standard
// input. One with neither is a program that must be found.
type feature struct {
	name    string
	needs   []Need
	modules []string // by their names in Linux 6.1 and later
	remedy  string   // where it has no modules
	root    bool     // it does not work in a user namespace
	program string   // that the feature is
	call    func(context.Context, *netns.Namespace) error
	with    []string // the program that the feature is tried with, and its arguments
	input   string
}

// features is the table: each feature, what needs it, its modules, and how it is tried.
var features = slices.Concat(machineFeatures, linkFeatures, nftFeatures, xtablesFeatures, optionalFeatures)

var machineFeatures = []feature{
	{name: "nft", needs: []Need{Lab}, program: "nft"},
	{name: "iptables-restore", needs: []Need{Lab}, program: "iptables-restore"},
	{name: "ip", needs: []Need{Lab}, program: "ip"},
	{name: "unshare", needs: []Need{Lab}, program: "unshare"},
	{name: "ebtables", needs: []Need{PodBridge}, program: "ebtables-restore"},
	{name: "ipset", needs: []Need{Calico}, program: "ipset"},
	{name: "tar", needs: []Need{Lab}, program: "tar"},
	{name: "process namespaces", needs: []Need{Lab}, call: tryProcessNamespaces,
		remedy: "use a kernel with CONFIG_PID_NS, CONFIG_UTS_NS and CONFIG_IPC_NS; in a container run it with --privileged"},
	{name: "overlay", needs: []Need{Lab}, modules: []string{"overlay"}, call: tryOverlay},
	{name: "cgroup2 programs", needs: []Need{Lab}, root: true, call: tryGroupPrograms,
		remedy: "use a kernel with CONFIG_CGROUP_BPF; in a container run it with --privileged"},
}

var linkFeatures = []feature{
	{name: namespaces, needs: []Need{Lab}, call: func(context.Context, *netns.Namespace) error { return nil },
		remedy: "use a kernel with CONFIG_NET_NS; in a container run it with --privileged"},
	{name: "network sysctls", needs: []Need{Lab}, call: trySysctls,
		remedy: "/proc/sys must be writable: in a container run it with --privileged"},
	{name: "veth", needs: []Need{Lab}, modules: []string{"veth"}, call: tryVeth},
	{name: "policy routing", needs: []Need{Lab}, call: tryPolicyRouting, remedy: "use a kernel with CONFIG_IP_MULTIPLE_TABLES"},
	{name: "raw sockets", needs: []Need{Lab}, modules: []string{"af_packet"}, call: tryRawSockets},
	{name: "conntrack netlink", needs: []Need{Lab}, modules: []string{"nf_conntrack", "nf_conntrack_netlink"}, call: tryConntrack},
	{name: "bridge", needs: []Need{PodBridge}, modules: []string{"bridge"}, call: tryBridge},
	{name: "br_netfilter", needs: []Need{PodBridge}, modules: []string{"br_netfilter"}, call: tryBridgeNetfilter},
}

func nft(name string, needs []Need, modules []string, family, body string) feature {
	input := fmt.Sprintf("table %s check-%s {\n%s\n}\n", family, strings.ReplaceAll(name, " ", "-"), body)
	return feature{name: "nft " + name, needs: needs, modules: append([]string{"nf_tables"}, modules...),
		with: []string{"nft", "-f", "-"}, input: input}
}

// chain returns an nft chain at a hook with one rule.
func chain(at, rule string) string { return "chain c {\ntype " + at + "\n" + rule + "\n}" }

const (
	atRaw         = "filter hook prerouting priority raw"
	atForward     = "filter hook forward priority filter"
	atPrerouting  = "nat hook prerouting priority dstnat"
	atPostrouting = "nat hook postrouting priority srcnat"
)

var (
	everyLab  = []Need{Lab}
	nftProxy  = []Need{NFTablesProxy}
	liveWalks = []Need{LiveWalk}
)

var nftFeatures = []feature{
	nft("family ip", everyLab, nil, "ip", chain(atRaw, "ip saddr 10.0.0.1 counter accept")),
	nft("family inet", liveWalks, nil, "inet", chain(atRaw, "meta l4proto tcp accept")),
	nft("family bridge", []Need{PodBridge}, []string{"nft_meta_bridge"}, "bridge",
		chain("filter hook prerouting priority -300", "ether type arp accept")),
	nft("nat", []Need{Lab, NFTablesProxy}, []string{"nft_chain_nat", "nft_nat"}, "ip",
		chain(atPostrouting, "meta l4proto tcp snat ip to 10.0.0.1:1024-2047")),
	nft("ct", []Need{Lab, NFTablesProxy}, []string{"nft_ct"}, "ip",
		chain(atForward, "ct state new ct mark set meta mark ct status dnat accept")),
	nft("notrack", everyLab, []string{"nft_ct"}, "ip", chain(atRaw, "notrack")),
	nft("ct timeout", everyLab, []string{"nfnetlink_cttimeout", "nft_ct"}, "ip",
		"ct timeout t {\nprotocol tcp\npolicy = { established : 240 }\n}\n"+chain("filter hook prerouting priority mangle + 1", `ct timeout set "t"`)),
	nft("maps", []Need{Lab, NFTablesProxy}, []string{"nft_lookup"}, "ip", `
		map ranges { type ipv4_addr : interval ipv4_addr . inet_service; elements = { 10.0.0.1 : 10.0.0.2 . 1024-2047 } }
		map routes { type ipv4_addr : verdict; flags interval; elements = { 10.0.0.0/8 : drop } }
		set own { type ifname . ipv4_addr; elements = { "lo" . 127.0.0.1 } }
		set pods { type ifname . ipv4_addr; flags interval; elements = { "lo" . 127.0.0.0/8 } }
		`+chain(atForward, "ip daddr vmap @routes\niifname . ip saddr @own accept\niifname . ip saddr @pods accept")),
	nft("jhash", everyLab, []string{"nft_hash"}, "ip",
		chain(atForward, "meta mark set jhash ip saddr . th sport mod 2 seed 1 map { 0 : 1, 1 : 2 }")),
	nft("reject", []Need{Lab, NFTablesProxy}, []string{"nft_reject", "nft_reject_ipv4"}, "ip",
		chain(atForward, "meta l4proto tcp reject with tcp reset")),
	nft("numgen", []Need{Lab, NFTablesProxy}, []string{"nft_numgen"}, "ip",
		chain(atPostrouting, "meta l4proto tcp numgen random mod 2 == 0 snat ip to 10.0.0.1")),
	nft("masq", nftProxy, []string{"nft_masq"}, "ip", chain(atPostrouting, "masquerade fully-random")),
	nft("fib", nftProxy, []string{"nft_fib", "nft_fib_ipv4"}, "ip", chain(atPrerouting, "fib daddr type local accept")),
	nft("dynamic sets", nftProxy, nil, "ip", "set s { type ipv4_addr; flags dynamic, timeout; timeout 3h; }\n"+chain(atForward,
		"update @s { ip saddr }")),
	nft("limit", liveWalks, []string{"nft_limit"}, "inet", chain(atRaw, "limit rate 10/second accept")),
	nft("trace", liveWalks, nil, "inet", chain(atRaw, "meta nftrace set 1")),
}

// xt returns an extension of iptables, of the variant of nf_tables.
func xt(name string, needs []Need, modules []string, table, rule string) feature {
	return feature{name: "iptables " + name, needs: needs, modules: append([]string{"nft_compat"}, modules...),
		with: []string{"iptables-restore", "--wait=5"}, input: "*" + table + "\n-A " + rule + "\nCOMMIT\n"}
}

var iptablesProxy = []Need{IPTablesProxy}

var xtablesFeatures = []feature{
	xt("comment", everyLab, []string{"xt_comment"}, "filter", "FORWARD -m comment --comment c"),
	xt("TTL", everyLab, []string{"xt_HL"}, "mangle", "PREROUTING -j TTL --ttl-inc 1"),
	xt("MASQUERADE", everyLab, []string{"xt_MASQUERADE"}, "nat", "POSTROUTING -j MASQUERADE --random-fully"),
	xt("iprange", everyLab, []string{"xt_iprange"}, "nat", "POSTROUTING -m iprange ! --dst-range 10.0.0.1-10.0.0.2 -j ACCEPT"),
	xt("addrtype", everyLab, []string{"xt_addrtype"}, "nat", "POSTROUTING -m addrtype ! --dst-type LOCAL -j ACCEPT"),
	xt("mark", everyLab, []string{"xt_mark"}, "nat", "POSTROUTING -m mark --mark 0x4000/0x4000 -j MARK --xor-mark 0x4000"),
	xt("DNAT", everyLab, []string{"xt_nat"}, "nat", "PREROUTING -p tcp --dport 80 -j DNAT --to-destination 10.0.0.1:80"),
	xt("multiport", everyLab, []string{"xt_multiport"}, "nat", "PREROUTING -p tcp -m multiport --dports 80,81 -j ACCEPT"),
	xt("statistic", iptablesProxy, []string{"xt_statistic"}, "nat",
		"PREROUTING -m statistic --mode random --probability 0.5 -j ACCEPT"),
	xt("recent", iptablesProxy, []string{"xt_recent"}, "nat",
		"PREROUTING -m recent --name check --rcheck --seconds 10800 --reap -j ACCEPT"),
	xt("conntrack", iptablesProxy, []string{"xt_conntrack"}, "filter", "FORWARD -m conntrack --ctstate INVALID -j DROP"),
	xt("REJECT", iptablesProxy, []string{"ipt_REJECT"}, "filter", "FORWARD -p tcp -j REJECT"),
	xt("physdev", iptablesProxy, []string{"xt_physdev"}, "nat", "PREROUTING -m physdev ! --physdev-is-in -j ACCEPT"),
	{name: "ipset hash:net", needs: []Need{Calico}, modules: []string{"ip_set", "ip_set_hash_net"}, with: []string{"ipset", "restore"},
		input: "create check hash:net -exist\n"},
	{name: "iptables set", needs: []Need{Calico}, modules: []string{"nft_compat", "xt_set"}, with: []string{"iptables-restore"},
		call: trySetMatch},
	{name: "ebtables arpreply, snat, dnat", needs: []Need{PodBridge},
		modules: []string{"nft_compat", "ebt_arpreply", "ebt_snat", "ebt_dnat"}, with: []string{"ebtables-restore"}, input: `*nat
:PREROUTING ACCEPT
:POSTROUTING ACCEPT
-A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.0.0.1 -j arpreply --arpreply-mac 00:0d:3a:00:00:01 --arpreply-target DROP
-A PREROUTING -p IPv4 --ip-dst 10.0.0.1 -j dnat --to-dst 00:0d:3a:00:00:01 --dnat-target ACCEPT
-A POSTROUTING -s Unicast -o lo -j snat --to-src 00:0d:3a:00:00:01 --snat-arp --snat-target ACCEPT
`},
}

var optionalFeatures = []feature{
	{name: "cgroup limits", needs: []Need{Limits}, root: true, call: tryLimits,
		remedy: "make /sys/fs/cgroup writable, with the controllers memory, cpu and pids; in a container run it with --privileged"},
	{name: "mkfs.ext4", needs: []Need{DiskLimit}, program: "mkfs.ext4"},
	{name: "loop devices with ext4", needs: []Need{DiskLimit}, modules: []string{"loop", "ext4"}, root: true,
		with: []string{"mkfs.ext4"}, call: tryDisk},
	{name: "conntrack", needs: []Need{FlowList}, program: "conntrack"},
	{name: "user namespaces with mapped mounts", needs: []Need{PodUsers}, root: true, call: tryMappedMounts,
		remedy: "use Linux 6.3 or later with CONFIG_USER_NS and user.max_user_namespaces above 0"},
	{name: "iptables nfacct", needs: []Need{Counters}, modules: []string{"nfnetlink_acct", "xt_nfacct"}, call: tryAccounting},
}
