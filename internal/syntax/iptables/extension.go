package iptables

import (
	"maps"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

// The extensions of iptables, by iptables-extensions(8): their values stand in the files ext_NAME.go; those of which only the options are
// known, or the form in which iptables -L lists them, in the tables below.

// matchExtension is a match: what "-m NAME" tests.
type matchExtension struct {
	options options
	// lower gives a match its meaning, and returns false for what it does not understand; nil where the walk knows nothing of it.
	lower func(*lowerer, *Match) bool
	// listed read what iptables -L prints of it, by the first word; a "!" that stood before is told.
	listed map[string]listedMatch
}

type listedMatch = func(l *restReader, not bool) bool

// targetExtension is a target: what "-j NAME" does.
type targetExtension struct {
	options options
	note    string // what it does, in words, where that changes nothing that a walk sees
	// lower gives a target its meaning, and returns nil for what it does not understand.
	lower func(*lowerer, *Target) netfilter.Statement
	// listed reads what iptables -L prints of it; nil where that is nothing.
	listed func(*restReader, *Target) bool
}

var matchExtensions = map[string]matchExtension{
	"addrtype":  addrtypeMatch,
	"cgroup":    {options: spec("path cgroup"), listed: map[string]listedMatch{"cgroup": after("", "cgroup", "cgroup")}},
	"comment":   commentMatch,
	"connlimit": connlimitMatch,
	"connmark":  connmarkMatch,
	"conntrack": conntrackMatch,
	"dccp":      dccpMatch,
	"devgroup":  devgroupMatch,
	"dscp":      dscpMatch,
	"hashlimit": hashlimitMatch,
	"helper":    helperMatch,
	"hl":        hlMatch,
	"icmp":      icmpMatch,
	"icmp6":     icmp6Match,
	"iprange":   iprangeMatch,
	"ipvs":      {options: spec("ipvs=0 vproto vaddr vport vdir vmethod vportctl")},
	"length":    lengthMatch,
	"limit":     limitMatch,
	"mac":       macMatch,
	"mark":      markMatch,
	"multiport": multiportMatch,
	"nfacct":    nfacctMatch,
	"owner":     ownerMatch,
	"physdev":   physdevMatch,
	"pkttype":   pkttypeMatch,
	"policy":    {options: spec("dir pol strict=0 reqid spi proto mode tunnel-src tunnel-dst next=0")},
	"quota":     quotaMatch,
	"recent":    recentMatch,
	"rpfilter":  rpfilterMatch,
	"sctp":      sctpMatch,
	"set":       setMatch,
	"socket": {
		options: spec("nowildcard=0 transparent=0 restore-skmark=0"),
		listed:  map[string]listedMatch{"socket": ownOptions("socket", "--", spec("transparent=0 nowildcard=0 restore-skmark=0"))},
	},
	"state":     stateMatch,
	"statistic": statisticMatch,
	"string":    {options: spec("algo from to string hex-string icase=0")},
	"tcp":       tcpMatch,
	"tcpmss":    tcpmssMatch,
	"tos":       tosMatch,
	"ttl":       ttlMatch,
	"u32":       {options: spec("u32")},
	"udp":       udpMatch,
	"udplite":   udpliteMatch,
}

var targetExtensions = map[string]targetExtension{
	"AUDIT":       {options: spec("type"), note: "write an audit record"},
	"CHECKSUM":    checksumTarget,
	"CLASSIFY":    classifyTarget,
	"CLUSTERIP":   {},
	"CONNMARK":    connmarkTarget,
	"CONNSECMARK": {options: spec("save=0 restore=0"), note: "copy the security mark"},
	"CT":          ctTarget,
	"DNAT":        dnatTarget,
	"DNPT":        {},
	"DSCP":        dscpTarget,
	"ECN":         {options: spec("ecn-tcp-remove=0"), note: "clear the ECN bits of TCP"},
	"HL":          hlTarget,
	"HMARK":       {},
	"IDLETIMER":   {options: spec("timeout label alarm=0 send_nl_msg"), note: "start a timer"},
	"LED":         {options: spec("led-trigger-id led-delay led-always-blink=0"), note: "blink"},
	"LOG":         logTarget,
	"MARK":        markTarget,
	"MASQUERADE":  masqueradeTarget,
	"NETMAP":      netmapTarget,
	"NFLOG":       nflogTarget,
	"NFQUEUE":     nfqueueTarget,
	"NOTRACK":     notrackTarget,
	"RATEEST":     {options: spec("rateest-name rateest-interval rateest-ewmalog"), note: "count the rate"},
	"REDIRECT":    redirectTarget,
	"REJECT":      rejectTarget,
	"SECMARK":     {options: spec("selctx"), note: "set the security mark"},
	"SET":         setTarget,
	"SNAT":        snatTarget,
	"SNPT":        {},
	"SYNPROXY":    {},
	"TCPMSS":      tcpmssTarget,
	"TCPOPTSTRIP": {options: spec("strip-options"), note: "strip TCP options"},
	"TEE":         {options: spec("gateway oif"), note: "send a copy elsewhere"},
	"TOS":         tosTarget,
	"TPROXY":      tproxyTarget,
	"TRACE":       {note: "trace"},
	"TTL":         ttlTarget,
	"ULOG":        ulogTarget,
}

// listedMatches are the matches by the first word that iptables -L prints of them.
var listedMatches map[string]listedMatch

func init() { // the readers refer to the table, too
	listedMatches = map[string]listedMatch{}
	for _, e := range matchExtensions {
		maps.Copy(listedMatches, e.listed)
	}
}

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

// Decides reports whether what a packet meets after a rule with this target never has it: it is a verdict, or ends in one.
func Decides(target string) bool {
	_, verdict := decisions[target]
	return verdict || slices.Contains([]string{"REJECT", "DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP", "TPROXY", "NFQUEUE"}, target)
}

// IsUserChain reports whether a target is a chain: it is no verdict and no extension.
func IsUserChain(target string) bool {
	_, extension := targetExtensions[target]
	_, verdict := decisions[target]
	return target != "" && !extension && !verdict
}
