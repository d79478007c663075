package redact

import (
	"regexp"
	"strings"

	"packetwalk.dev/internal/syntax/iptables"
)

// plainOptions are, by extension, the options whose arguments can be no free text: numbers, addresses, and words of the program
// (iptables-extensions(8), ebtables-nft(8)). An argument of any other option is replaced, also where the extension is unknown.
var plainOptions = optionTable(`
	* s src source d dst destination p proto protocol f fragment c set-counters
	addrtype src-type dst-type
	ah ahspi ahlen
	cgroup cgroup
	cluster cluster-total-nodes cluster-local-node cluster-local-nodemask cluster-hash-seed
	connbytes connbytes connbytes-dir connbytes-mode
	connlimit connlimit-upto connlimit-above connlimit-mask
	connmark mark
	conntrack ctstate ctproto ctorigsrc ctorigdst ctreplsrc ctrepldst ctorigsrcport ctorigdstport ctreplsrcport ctrepldstport ctstatus
		ctexpire ctdir
	cpu cpu
	dccp sport dport source-port destination-port dccp-types dccp-option
	dscp dscp dscp-class
	dst dst-len dst-opts
	ecn ecn-ip-ect
	esp espspi
	frag fragid fraglen
	hashlimit hashlimit hashlimit-upto hashlimit-above hashlimit-burst hashlimit-mode hashlimit-srcmask hashlimit-dstmask
		hashlimit-htable-size hashlimit-htable-max hashlimit-htable-gcinterval hashlimit-htable-expire hashlimit-rate-interval
	hbh hbh-len hbh-opts
	hl hl-eq hl-lt hl-gt
	icmp icmp-type
	icmp6 icmpv6-type
	ipcomp ipcompspi
	iprange src-range dst-range
	ipv6header header
	ipvs vproto vaddr vport vdir vmethod vportctl
	length length
	limit limit limit-burst
	mac mac-source
	mark mark
	mh mh-type
	multiport sports dports ports source-ports destination-ports
	pkttype pkt-type
	policy dir pol reqid spi proto mode tunnel-src tunnel-dst
	quota quota
	rateest rateest-bps rateest-bps1 rateest-bps2 rateest-pps rateest-pps1 rateest-pps2
	recent seconds hitcount mask
	rt rt-type rt-segsleft rt-len rt-0-addrs
	sctp sport dport source-port destination-port chunk-types
	set packets-eq packets-lt packets-gt bytes-eq bytes-lt bytes-gt
	srh srh-next-hdr srh-hdr-len-eq srh-hdr-len-gt srh-hdr-len-lt srh-segs-left-eq srh-segs-left-gt srh-segs-left-lt srh-last-entry-eq
		srh-last-entry-gt srh-last-entry-lt srh-tag srh-psid srh-nsid srh-lsid
	state state
	statistic mode probability every packet
	string algo from to
	tcp sport dport source-port destination-port tcp-flags tcp-option
	tcpmss mss
	time datestart datestop timestart timestop monthdays weekdays
	tos tos
	ttl ttl-eq ttl-lt ttl-gt
	udp sport dport source-port destination-port
	udplite sport dport source-port destination-port
	AUDIT type
	CLASSIFY set-class
	CLUSTERIP hashmode clustermac total-nodes local-node hash-init
	CONNMARK set-xmark set-mark and-mark or-mark xor-mark nfmask ctmask mask left-shift-mark right-shift-mark
	CT ctevents expevents zone zone-orig zone-reply
	DNAT to-destination
	DNPT src-pfx dst-pfx
	DSCP set-dscp set-dscp-class
	HL hl-set hl-dec hl-inc
	HMARK hmark-tuple hmark-mod hmark-offset hmark-rnd hmark-src-prefix hmark-dst-prefix hmark-sport-mask hmark-dport-mask hmark-spi-mask
		hmark-sport hmark-dport hmark-spi hmark-proto-mask
	IDLETIMER timeout send_nl_msg
	LED led-delay
	LOG log-level
	MARK set-xmark set-mark and-mark or-mark xor-mark
	MASQUERADE to-ports
	NETMAP to
	NFLOG nflog-group nflog-range nflog-size nflog-threshold
	NFQUEUE queue-num queue-balance
	RATEEST rateest-interval rateest-ewmalog
	REDIRECT to-ports
	REJECT reject-with
	SET timeout
	SNAT to-source
	SNPT src-pfx dst-pfx
	SYNPROXY wscale mss
	TCPMSS set-mss
	TCPOPTSTRIP strip-options
	TEE gateway
	TOS set-tos and-tos or-tos xor-tos
	TPROXY on-port on-ip tproxy-mark
	TTL ttl-set ttl-dec ttl-inc
	ULOG ulog-nlgroup ulog-cprange ulog-qthreshold
	ebtables 802_3-sap 802_3-type among-src among-dst arp-op arp-opcode arp-htype arp-ptype arp-ip-src arp-ip-dst arp-mac-src arp-mac-dst
		ip-src ip-source ip-dst ip-destination ip-tos ip-proto ip-protocol ip-sport ip-source-port ip-dport ip-destination-port ip-icmp-type
		ip-igmp-type ip6-src ip6-source ip6-dst ip6-destination ip6-tclass ip6-proto ip6-protocol ip6-sport ip6-source-port ip6-dport
		ip6-destination-port ip6-icmp-type limit limit-burst mark mark-set mark-or mark-and mark-xor mark-target set-mark or-mark and-mark
		xor-mark pkttype-type stp-type stp-flags stp-root-prio stp-root-addr stp-root-cost stp-sender-prio stp-sender-addr stp-port stp-msg-age
		stp-max-age stp-hello-time stp-forward-delay string-algo string-from string-to vlan-id vlan-prio vlan-encap log-level nflog-group
		nflog-range nflog-size nflog-threshold ulog-nlgroup ulog-cprange ulog-qthreshold to-src to-source to-dst to-destination snat-target
		dnat-target redirect-target arpreply-mac arpreply-target`)

// optionTable reads lines of an extension and its options. A line that begins with two tabs goes on with those of the line before.
func optionTable(text string) map[string]map[string]bool {
	table := map[string]map[string]bool{}
	for line := range strings.SplitSeq(strings.ReplaceAll(strings.TrimSpace(text), "\n\t\t", " "), "\n") {
		extension, options, _ := strings.Cut(strings.TrimSpace(line), " ")
		table[extension] = wordSet(options)
	}
	return table
}

// textOptions are the options whose argument is a text that may begin with a dash.
var textOptions = wordSet(`comment log-prefix nflog-prefix ulog-prefix string hex-string string-hex helper label name timeout path
	object-pinned bytecode u32 selctx led-trigger-id rateest-name rateest rateest1 rateest2 nfacct-name hashlimit-name match-set add-set del-set map-set`)

// flagOptions are the options of all extensions that take no argument. What follows any other option that is not in these tables is taken
// for its argument, even if it looks like an option.
var flagOptions = wordSet(`accept-local arp-gratuitous checksum-fill clamp-mss-to-pmtu connlimit-daddr connlimit-saddr contiguous ecn ecn-tcp-cwr
	ecn-tcp-ece exist fragfirst fraglast fragmore fragres icase invert ipvs kerneltz led-always-blink limit-iface-in limit-iface-out log-arp
	log-ip log-ip-options log-ip6 log-tcp-options log-tcp-sequence log-uid loose new next notrack nowildcard persistent physdev-is-bridged
	physdev-is-in physdev-is-out queue-bypass queue-cpu-fanout random random-fully rateest-delta rateest-eq rateest-gt rateest-lt rcheck rdest
	reap remove restore restore-mark restore-skmark return-nomatch rsource rt-0-not-strict rt-0-res rttl sack-perm save save-mark set
	socket-exists soft strict suppl-groups syn timestamp transparent update utc validmark hashlimit-rate-match
	update-counters update-subcounters map-mark map-prio map-queue`)

// isKnown reports whether an option is one of those whose arguments, or whose lack of any, are known.
func isKnown(extension, option string) bool {
	return plainOptions["*"][option] || plainOptions[extension][option] || textOptions[option] || namedNumbers[option] || flagOptions[option] ||
		ruleOptions[option]
}

// ruleOptions are the options that belong to no extension.
var ruleOptions = wordSet(`A m match j jump g goto i o in-interface out-interface in-if out-if logical-in logical-out physdev-in physdev-out oif iface`)

// namedNumbers are the options whose argument is a number or, where the machine has one for it, a name.
var namedNumbers = wordSet("uid-owner gid-owner realm src-group dst-group label timeout ttl log")

var numbers = regexp.MustCompile(`^(0x[0-9a-f]+|[0-9]+)([-/:](0x[0-9a-f]+|[0-9]+))?$`)

// publicHelpers are the connection tracking helpers of the kernel, on their own ports and on others (net/netfilter/nf_conntrack_*.c).
var publicHelpers = regexp.MustCompile(`^(amanda|ftp|irc|netbios-ns|pptp|Q\.931|H\.245|RAS|sane|sip|snmp|tftp)(-[0-9]+)?$`)

func (r *redactor) helper(name string) string {
	if publicHelpers.MatchString(name) {
		return name
	}
	return r.names.text(name)
}

// option replaces an argument of an option of an extension, by its place among the option's arguments.
func (r *redactor) option(extension, name string, place int, arg string) string {
	switch name {
	case "comment":
		return r.comment(arg)
	case "match-set", "set", "add-set", "del-set", "map-set":
		if place == 0 {
			return r.names.set(arg)
		}
		if setFlags.MatchString(arg) {
			return arg
		}
	case "physdev-in", "physdev-out", "oif", "iface":
		return r.pattern(arg, "+")
	case "helper":
		return r.helper(arg)
	case "name": // of a list, which recent.json has, too
		return r.names.free(arg)
	case "nfacct-name":
		if publicCounters[arg] {
			return arg
		}
	}
	switch {
	case plainOptions["*"][name], plainOptions[extension][name]:
		return r.line(arg)
	case namedNumbers[name] && numbers.MatchString(arg), name == "src-group" && arg == "default", name == "dst-group" && arg == "default":
		return arg
	}
	return r.names.text(arg)
}

var setFlags = regexp.MustCompile(`^(src|dst)(,(src|dst))*$`)

// command replaces the words of a rule in the syntax of iptables, or of ebtables, where it is not parsed.
func (r *redactor) command(text, extension string, own map[string]bool) string {
	words := splitQuoted(text)
	option, place := "", 0
	for i, w := range words {
		if w == "!" {
			continue
		}
		if name := strings.TrimLeft(w, "-"); isOption(w) && (place > 0 || !textOptions[option]) &&
			(place > 0 || isKnown(extension, option) || isKnown(extension, name)) {
			option, place = name, 0
			continue
		}
		bare := iptables.Unquote(w)
		changed := bare
		switch option {
		case "i", "o", "logical-in", "logical-out", "in-interface", "out-interface", "in-if", "out-if":
			changed = r.pattern(bare, "+")
		case "A", "j", "g", "jump", "goto":
			if own[bare] {
				changed = r.names.chain(bare)
			} else if extension != ebtablesOptions {
				extension = bare
			}
		case "m", "match":
			extension = bare
		case "p", "proto", "protocol":
			if changed = r.line(bare); extension != ebtablesOptions {
				extension = bare
			}
		default:
			changed = r.option(extension, option, place, bare)
		}
		if place++; changed != bare {
			if words[i] = changed; w != bare {
				words[i] = iptables.Quote(changed)
			}
		}
	}
	return strings.Join(words, " ")
}

// ebtablesOptions is the row of plainOptions for ebtables, whose extensions need no "-m".
const ebtablesOptions = "ebtables"

// isOption reports whether a word of a rule is an option's name: "-A" or "--dport". A word such as "-1" or "-acme" is an argument.
func isOption(word string) bool {
	name, long := strings.CutPrefix(word, "--")
	return long && optionName.MatchString(name) || len(word) == 2 && word[0] == '-' && optionName.MatchString(word[1:])
}

var optionName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9_-]*[a-zA-Z0-9])?$`)
