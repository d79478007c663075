package iptables

import (
	"slices"
	"strings"
)

// options maps an option's name to the number of words that follow it.
type options map[string]int

// spec reads "name name=2 name=0": one word follows unless another number stands there.
func spec(text string) options {
	o := options{}
	for _, field := range strings.Fields(text) {
		name, n, ok := strings.Cut(field, "=")
		o[name] = 1
		if ok {
			o[name] = int(n[0] - '0')
		}
	}
	return o
}

// find gives an option by its name, or by a beginning of it that no other option has, as getopt_long(3) does for iptables; and how many
// words follow it.
func (o options) find(name string) (full string, words int, ok bool) {
	if words, ok = o[name]; ok {
		return name, words, true
	}
	for candidate, n := range o {
		if name == "" || !strings.HasPrefix(candidate, name) {
			continue
		}
		if ok {
			return "", 0, false
		}
		full, words, ok = candidate, n, true
	}
	return full, words, ok
}

const portOptions = "sport dport source-port destination-port"

// matchOptions are the match modules that the parser knows, from iptables-extensions(8).
var matchOptions = map[string]options{
	"addrtype":  spec("src-type dst-type limit-iface-in=0 limit-iface-out=0"),
	"cgroup":    spec("path cgroup"),
	"comment":   spec("comment"),
	"connlimit": spec("connlimit-upto connlimit-above connlimit-mask connlimit-saddr=0 connlimit-daddr=0"),
	"connmark":  spec("mark"),
	"conntrack": spec("ctstate ctproto ctorigsrc ctorigdst ctreplsrc ctrepldst ctorigsrcport ctorigdstport ctreplsrcport ctrepldstport ctstatus ctexpire ctdir"),
	"dccp":      spec(portOptions + " dccp-types dccp-option"),
	"devgroup":  spec("src-group dst-group"),
	"dscp":      spec("dscp"),
	"hashlimit": spec("hashlimit-upto hashlimit-above hashlimit-burst hashlimit-mode hashlimit-name hashlimit-srcmask hashlimit-dstmask hashlimit-htable-size hashlimit-htable-max hashlimit-htable-expire hashlimit-htable-gcinterval hashlimit-rate-match=0 hashlimit-rate-interval"),
	"helper":    spec("helper"),
	"hl":        spec("hl-eq hl-lt hl-gt"),
	"icmp":      spec("icmp-type"),
	"icmp6":     spec("icmpv6-type"),
	"ipvs":      spec("ipvs=0 vproto vaddr vport vdir vmethod vportctl"),
	"iprange":   spec("src-range dst-range"),
	"length":    spec("length"),
	"limit":     spec("limit limit-burst"),
	"mac":       spec("mac-source"),
	"mark":      spec("mark"),
	"multiport": spec("sports dports ports source-ports destination-ports"),
	"nfacct":    spec("nfacct-name"),
	"owner":     spec("uid-owner gid-owner socket-exists=0 suppl-groups=0"),
	"physdev":   spec("physdev-in physdev-out physdev-is-in=0 physdev-is-out=0 physdev-is-bridged=0"),
	"pkttype":   spec("pkt-type"),
	"policy":    spec("dir pol strict=0 reqid spi proto mode tunnel-src tunnel-dst next=0"),
	"recent":    spec("set=0 rcheck=0 update=0 remove=0 seconds hitcount reap=0 rttl=0 name mask rsource=0 rdest=0"),
	"rpfilter":  spec("loose=0 validmark=0 accept-local=0 invert=0"),
	"sctp":      spec(portOptions),
	"set":       spec("match-set=2 set=2 return-nomatch=0 update-counters=0 update-subcounters=0"), // --set is match-set's old name
	"socket":    spec("nowildcard=0 transparent=0 restore-skmark=0"),
	"state":     spec("state"),
	"statistic": spec("mode probability every packet"),
	"string":    spec("algo from to string hex-string icase=0"),
	"tcp":       spec(portOptions + " tcp-flags=2 tcp-option syn=0"),
	"tcpmss":    spec("mss"),
	"tos":       spec("tos"),
	"ttl":       spec("ttl-eq ttl-lt ttl-gt"),
	"u32":       spec("u32"),
	"udp":       spec(portOptions),
	"udplite":   spec(portOptions),
}

// targetOptions are the targets with options that the parser knows. A target without options is a verdict or a chain.
var targetOptions = map[string]options{
	"AUDIT":       spec("type"),
	"CHECKSUM":    spec("checksum-fill=0"),
	"CLASSIFY":    spec("set-class"),
	"CONNMARK":    spec("set-xmark set-mark and-mark or-mark xor-mark save-mark=0 restore-mark=0 nfmask ctmask mask"),
	"CONNSECMARK": spec("save=0 restore=0"),
	"CT":          spec("notrack=0 helper ctevents expevents zone zone-orig zone-reply timeout"),
	"DNAT":        spec("to-destination random=0 persistent=0"),
	"DSCP":        spec("set-dscp set-dscp-class"),
	"ECN":         spec("ecn-tcp-remove=0"),
	"HL":          spec("hl-set hl-dec hl-inc"),
	"IDLETIMER":   spec("timeout label alarm=0 send_nl_msg"),
	"LED":         spec("led-trigger-id led-delay led-always-blink=0"),
	"LOG":         spec("log-level log-prefix log-tcp-sequence=0 log-tcp-options=0 log-ip-options=0 log-uid=0 log-macdecode=0"),
	"MARK":        spec("set-xmark set-mark and-mark or-mark xor-mark"),
	"MASQUERADE":  spec("to-ports random=0 random-fully=0"),
	"NETMAP":      spec("to"),
	"NFLOG":       spec("nflog-group nflog-prefix nflog-range nflog-size nflog-threshold"),
	"NFQUEUE":     spec("queue-num queue-balance queue-bypass=0 queue-cpu-fanout=0"),
	"RATEEST":     spec("rateest-name rateest-interval rateest-ewmalog"),
	"REDIRECT":    spec("to-ports random=0"),
	"REJECT":      spec("reject-with"),
	"SECMARK":     spec("selctx"),
	"SET":         spec("add-set=2 del-set=2 map-set=2 exist=0 timeout map-mark=0 map-prio=0 map-queue=0"),
	"SNAT":        spec("to-source random=0 random-fully=0 persistent=0"),
	"TCPMSS":      spec("set-mss clamp-mss-to-pmtu=0"),
	"TCPOPTSTRIP": spec("strip-options"),
	"TEE":         spec("gateway oif"),
	"TOS":         spec("set-tos"),
	"TPROXY":      spec("on-port on-ip tproxy-mark"),
	"TTL":         spec("ttl-set ttl-dec ttl-inc"),
	"ULOG":        spec("ulog-nlgroup ulog-prefix ulog-cprange ulog-qthreshold"),
}

// notChains are the targets of iptables-extensions(8) and the verdicts.
var notChains = strings.Fields("ACCEPT DROP RETURN QUEUE AUDIT CLUSTERIP CONNSECMARK DNPT ECN HMARK IDLETIMER LED NOTRACK " +
	"RATEEST SECMARK SNPT SYNPROXY TCPOPTSTRIP TEE TRACE ULOG")

// IsUserChain tells whether a target is a chain: it is no verdict and no extension.
func IsUserChain(target string) bool {
	_, known := targetOptions[target]
	return target != "" && !known && !slices.Contains(notChains, target)
}
