package pastedtext

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/syntax/nfttext"
)

// state is a part of a machine's state, by the kind of output that shows it. An empty field stands for any.
type state struct {
	kind   BlockKind
	family int    // 4 or 6
	table  string // of iptables, of routes, of nft with its family
}

// ipTables is the kind of state that iptables shows, which blocks do not have.
const ipTables BlockKind = "iptables"

// meets reports whether two have something in common.
func (s state) meets(o state) bool {
	return (s.kind == o.kind || s.kind == "" || o.kind == "") && (s.family == o.family || s.family == 0 || o.family == 0) &&
		(s.table == o.table || s.table == "" || o.table == "")
}

// covers reports whether a listing of one shows all of the other.
func (s state) covers(o state) bool {
	return s.kind == o.kind && (s.family == 0 || s.family == o.family) && (s.table == "" || s.table == o.table)
}

// change is a command that may change the machine's state and is not carried out.
type change struct {
	line    int
	command string
	of      []state
	from    origin
	doubt   string // why it may not have been run, "" where it was
}

// changer is a command that changes state, with the kinds of output that would show it.
type changer struct {
	words   []string // of which the line has one
	pattern *regexp.Regexp
	kinds   []BlockKind
}

// changes are the commands that change a state, also in prose.
var changes = []changer{
	{[]string{"tables"}, of(`ip6?tables\S*\s(?:[^|;]*\s)?(?:-[AIDRFXNPE](?:\s|$|[A-Za-z][\w-]*)|--(?:append|insert|delete|flush|policy|replace|rename|new|delete-chain)\S*)|ip6?tables\S*-restore\b`),
		[]BlockKind{ipTables, NFTText}},
	{[]string{"ebtables"}, of(`ebtables\S*\s(?:[^|;]*\s)?(?:-[AIDRFXNPE]|--(?:append|insert|delete|flush|policy|rename|new)\S*)\b|ebtables\S*-restore\b`),
		[]BlockKind{EBTablesSave, NFTText}},
	{[]string{"nft"}, of(`nft\s+(?:-\S+\s+)*['"]?(?:add|create|insert|delete|destroy|replace|flush|reset|rename)\b|nft\s(?:.*\s)?(?:-f|--file)\s+[^-\s<]`),
		[]BlockKind{NFTText, ipTables, EBTablesSave}},
	{[]string{"ip "}, of(`ip\s+(?:-\S+\s+)*(?:-n(?:etns)?\s+\S+\s+)?(?:r|ro\w*|nexthop)\s+` + ipVerb), []BlockKind{IPRoute}},
	{[]string{"ip "}, of(`ip\s+(?:-\S+\s+)*(?:-n(?:etns)?\s+\S+\s+)?ru\w*\s+` + ipVerb), []BlockKind{IPRule}},
	{[]string{"ip ", "ifconfig", "brctl", "bridge"}, of(`ip\s+(?:-\S+\s+)*(?:-n(?:etns)?\s+\S+\s+)?(?:(?:a|ad\w*|tun\w*|vrf)\s+` + ipVerb + `|netns\s+d|l(?:i\w*)?\s+(?:se?t?\s|` + ipVerb + `))|ifconfig\s\S+\s\S|brctl\s(?:add|del|set)\w+\s|bridge\s+(?:-\S+\s+)*\w+\s+(?:add|del|set|append|replace)\w*\s`),
		[]BlockKind{IPAddress, IPRoute, BridgeFDB}},
	{[]string{"route"}, of(`route\s(?:-\S+\s+)*(?:add|del)\b`), []BlockKind{IPRoute}},
	{[]string{"ip ", "arp"}, of(`(?:ip\s+(?:-\S+\s+)*n(?:ei\w*|e)?|arp)\s+(?:-\w+\s+)*(?:add|del|replace|change|flush|-[sd])\S*\s`), []BlockKind{"ip neigh"}},
	{[]string{"ip "}, of(`ip\s+(?:-\S+\s+)*x\w*\s+\w+\s+` + ipVerb), []BlockKind{"ip xfrm"}},
	{[]string{"ipset"}, of(`ipset\s+(?:-\S+\s+)*(?:-[ADNXFEWR]\b|(?:add|del|create|destroy|flush|rename|swap|restore)\b)`), []BlockKind{IPSetList}},
	{[]string{"ipvsadm"}, of(`ipvsadm\S*\s(?:.*\s)?(?:-[AEDCRaed]|--(?:add|edit|delete|clear|restore)\S*)\b|ipvsadm-restore`), []BlockKind{IPVSList}},
	{[]string{"conntrack"}, of(`conntrack\s(?:.*\s)?(?:-[IUDF]|--(?:create|delete|update|flush))\b`), []BlockKind{ConntrackList}},
	{[]string{"tc "}, of(`tc\s(?:.*\s)?(?:add|append|del|delete|replace|change|flush)\b`), []BlockKind{"tc"}},
	{[]string{"sysctl", "/proc/"}, of(`sysctl\s(?:.*=|.*(?:-p|--load|--system)\b)|(?:echo|printf)\s.*>\s*/proc/|tee\s.*/proc/`), []BlockKind{SysctlList}},
	{[]string{"arptables"}, of(`arptables\S*\s(?:.*\s)?(?:-[AIDRFXNP]|--(?:append|insert|delete|flush|policy))\b`), []BlockKind{ARPTablesSave}},
	{programs, of(anything), []BlockKind{""}},
}

// ipVerb matches the verbs by which ip changes its objects. It takes a word's beginning for the word.
const ipVerb = `(?:a|ad\w*|app?\w*|pre\w*|r|re\w*|c|ch\w*|d|de\w*|f|fl\w*|se?t)(?:\s|$)`

// programs are words of the commands of anything.
var programs = strings.Fields("netplan nmcli ifup ifdown wg dhclient networkctl docker podman nerdctl kubectl helm ufw firewall-cmd systemctl service init.d .sh ./")

// anything are commands of other programs that change rules, routes or addresses by themselves.
const anything = `netplan\s+(?:apply|try)\b|nmcli\s+(?:-\S+\s+)*(?:c|con\w*|d|dev\w*|n|net\w*)\s+(?:up|down|add|del\w*|mod\w*|reload|reapply|connect|disconnect|set|on|off)\b|` +
	`if(?:up|down)\s+[\w-]*\w|wg-quick\s+(?:up|down)\b|wg\s+(?:set|setconf|addconf|syncconf)\s|dhclient\s+[-\w]|networkctl\s+(?:up|down|reload|reconfigure|delete)\b|` +
	`(?:docker|podman|nerdctl)(?:[ -]compose)?\s+(?:-\S+\s+)*(?:(?:network|container|swarm|service|stack|pod)\s+)?(?:run|start|stop|restart|kill|rm|create|connect|disconnect|prune|up|down|deploy|init|join|leave)\b|` +
	`kubectl\s+(?:-\S+\s+)*(?:apply|create|delete|replace|patch|edit|scale|rollout\s+restart|drain|set|expose|label|annotate)\b|helm\s+(?:install|upgrade|uninstall|rollback)\b|` +
	`ufw\s+(?:--\S+\s+)*(?:enable|disable|allow|deny|reject|limit|delete|insert|prepend|route|reset|reload|default)\b|` +
	`firewall-cmd\s(?:.*\s)?--(?:add|remove|set|change|reload|complete-reload|new|delete|direct|panic|load|runtime)\S*|` +
	`(?:systemctl|service)\s+(?:-\S+\s+)*(?:(?:start|stop|restart|reload|reload-or-restart)\s+(?:.*\s)?` + services + `|` + services + `\s+(?:start|stop|restart|reload)\b)|` +
	`/etc/init\.d/[\w.-]+\s+(?:start|stop|restart|reload|force-reload)\b|(?:\.{1,2}|~)?/[\w./-]*\.sh\b|\./[\w./-]+$|(?:ba|da|z|k)?sh\s+(?:-\w+\s+)*[\w./-]*\.sh\b`

// services are those that write rules, routes or addresses.
const services = `(?:ip6?tables|nftables|firewalld|ufw|netfilter-persistent|docker|containerd|crio|podman|kubelet|kube-proxy|k3s\S*|rke2\S*|libvirtd|lxd|` +
	`NetworkManager|networking|network|systemd-networkd|strongswan\S*|ipsec|openvpn\S*|wg-quick\S*|fail2ban|tailscaled|keepalived|frr|bird\d?|calico\S*|cilium|shorewall6?)(?:\.service)?\b`

// of compiles the pattern of a command, which stands at the beginning, behind a blank or in a shell's quotes.
func of(pattern string) *regexp.Regexp {
	return regexp.MustCompile("(?:^|[\\s/'\"(;&|`])(?:" + pattern + `)`)
}

var (
	// wrapper stands in front of a command that it runs.
	wrapper    = regexp.MustCompile(`^(?:(?:(?:sudo|time|nohup|exec|command|env|watch|do|then|else|if|while|until|!)(?:\s+-\S+)*|timeout\s+\S+|[A-Za-z_]\w*=\S*)\s+|[({]\s*)*(?:/\S*/)?`)
	pipedShell = regexp.MustCompile(`\|\s*(?:sudo\s+(?:-\S+\s+)*)?(?:/\S*/)?(?:ba|da|z|k)?sh\b`)
	// reads are programs that change nothing, whatever their arguments are.
	reads = regexp.MustCompile(`^(?:cat|ls|ll|less|more|tail|head|z?e?f?grep|awk|sed|echo|printf|vim?|nano|cd|pwd|export|set|alias|history|clear|man|which|type|whoami|id|uname|` +
		`hostname(?:ctl)?|date|uptime|free|df|du|ps|[bh]?top|lsof|ss|netstat|ping6?|curl|wget|nc|ncat|netcat|telnet|tcpdump|tshark|traceroute6?|tracepath6?|mtr|dig|nslookup|host|` +
		`getent|nmap|iperf3?|hping3|arping|lsmod|modinfo|dmesg|journalctl|lspci|lsb_release|ethtool|file|stat|find|diff|jq|yq|sort|uniq|wc|cut|tr|column|tee|sleep|true|false|test|\[\[?|` +
		`exit|logout|git|openssl|base64|xxd|for|done|fi|read|mkdir|touch|chmod|chown|cp|mv|rm|ln|python3?\s+-m\s+http\.server|getenforce|resolvectl|dpkg|rpm|pgrep|scp|apt-cache)(?:\s|$)`)
	// knows are programs of which changes has each command that changes something, and commands of others that change nothing.
	knows = regexp.MustCompile(`^(?:(?:ip6?tables\S*|ebtables\S*|arptables\S*|nft|ipset|ipvsadm\S*|conntrack|tc|bridge|brctl|ip|sysctl|route|ifconfig|arp|ufw|firewall-cmd|wg|networkctl)(?:\s|$)|` +
		`(?:docker|podman|nerdctl|crictl|ctr)\s+(?:-\S+\s+|(?:network|container|image|volume|compose|node|service|system|stack|pod)\s+)*(?:ps|ls|list|inspectp?|logs?|images|info|version|top|stats|port|diff|history|events|df|pods|search|config)\b|` +
		`(?:kubectl|oc|k)\s+(?:(?:-n|--namespace|--context|--kubeconfig)\s+\S+\s+|-\S+\s+)*(?:get|describe|logs?|debug|explain|version|config|top|cluster-info|api-\S+|auth|events|wait|port-forward|cp|attach)\b|` +
		`(?:systemctl|service)\s+(?:\S+\s+)*(?:status|is-\S+|show|cat|list-\S+|save|daemon-reload|--status-all|(?:start|stop|restart|reload)\s+(?:sshd?|nginx|apache2|httpd|rsyslog|cron|haproxy)(?:\.service)?)(?:\s|$)|` +
		`nmcli(?:\s+-\S+)*(?:\s+(?:g|general|d|dev\w*|c|con\w*|n|networking|radio|r))?(?:\s+(?:s|show|status|list)(?:\s.*)?)?$|netplan\s+(?:get|info|status|generate)\b|` +
		`helm\s+(?:list|ls|status|get|show|template|repo|search|version|history)\b|su(?:\s+-\w*)*(?:\s+\w+)?$|-\w+$|netfilter-persistent\s+save|apt(?:-get)?\s+(?:update|list|show|search|policy)\b|(?:ba|a|z|da)?sh(?:\s+-\w+)*$|(?:ba|a|z|da)?sh\s+(?:-\w+\s+)*-\w*c\s)`)
)

// concerns returns what a command may change.
func concerns(command string) []state {
	var all []state
	if pipedShell.MatchString(command) {
		all = append(all, state{})
	}
	for _, c := range splitCommands(command, true) {
		one := c.text
		name := one[len(wrapper.FindString(one)):]
		switch found := mentions(one); {
		case enters.MatchString(name+" ") && len(found) == 0:
			if !isLogin(name) && !shells.MatchString(name) && !harmlessWithin(name) {
				all = append(all, state{})
			}
		case reads.MatchString(name) && !strings.Contains(one, "/proc/"):
		case len(found) > 0:
			all = append(all, found...)
		case name != "" && name[0] != '#' && !reads.MatchString(name) && !knows.MatchString(name):
			all = append(all, state{})
		}
	}
	return all
}

// harmlessWithin reports whether one of a command's words begins a command that changes nothing.
func harmlessWithin(command string) bool {
	for at := strings.IndexByte(command, ' '); at >= 0; {
		rest := strings.TrimLeft(command[at:], ` '"`)
		rest = rest[len(wrapper.FindString(rest)):]
		if reads.MatchString(rest) || knows.MatchString(rest) && rest[0] != '-' {
			return true
		}
		next := strings.IndexByte(command[at+1:], ' ')
		if next < 0 {
			return false
		}
		at += 1 + next
	}
	return false
}

// mentions returns what the commands may change that are named in a line, for which it need not be a command itself.
func mentions(line string) []state {
	var all []state
	for _, c := range changes {
		if !slices.ContainsFunc(c.words, func(word string) bool { return strings.Contains(line, word) }) {
			continue
		}
		found := c.pattern.FindString(line)
		if found == "" {
			continue
		}
		for _, kind := range c.kinds {
			all = append(all, state{kind: kind}.narrowed(strings.Trim(found, " \t/'\"(;&|`"), line))
		}
	}
	return all
}

var (
	tableOption = regexp.MustCompile(`\s(?:-t|--table)[\s=]?([a-z]+)`)
	nftTable    = regexp.MustCompile(`\b(?:table|chain|rule|set|map|element|flowtable)\s+(?:(ip|ip6|inet|bridge|arp|netdev)\s+)?([\w.-]+)`)
	routeTable  = regexp.MustCompile(`\s(?:table|vrf)\s+(\S+)`)
)

// familyOf returns 6 for IPv6, else 4.
func familyOf(ipv6 bool) int {
	if ipv6 {
		return 6
	}
	return 4
}

// narrowed adds the family and the table that the command names.
func (s state) narrowed(command, line string) state {
	_, ipv4, ipv6 := stateOf(line)
	six := strings.Contains(line, " -6 ") || ipv6
	switch table := tableOption.FindStringSubmatch(line); {
	case strings.HasPrefix(command, "ip6tables") || strings.HasPrefix(command, "iptables"):
		s.family = familyOf(command[2] == '6')
		name := iptables.Filter
		if table != nil {
			name = table[1]
		}
		if s.kind == NFTText {
			name = map[int]string{4: "ip ", 6: "ip6 "}[s.family] + name
		}
		if s.table = name; strings.Contains(command, "-restore") && table == nil {
			s.table = ""
		}
	case strings.HasPrefix(command, "nft"):
		if m := nftTable.FindStringSubmatch(line); m != nil {
			family := cmp.Or(m[1], "ip")
			s.family = map[string]int{"ip": 4, "ip6": 6}[family]
			if s.table = m[2]; s.kind == NFTText {
				s.table = family + " " + m[2]
			}
		}
	case s.kind == IPRoute && !strings.Contains(command, "link") || s.kind == IPRule:
		s.family = familyOf(six)
		if s.kind == IPRoute {
			s.table = "main"
			if m := routeTable.FindStringSubmatch(line); m != nil {
				s.table = strings.TrimPrefix(m[1], "all")
			}
		}
	case s.kind == IPAddress && ipv4 != ipv6:
		s.family = familyOf(ipv6)
	}
	return s
}

// noteChange notes a command that may change the machine's state. Whether it has an effect on the answer is settled when all is read.
func (s *scanner) noteChange(command string, of []state) {
	s.NotRead(s.at, "a command that may change the machine's state")
	ipv4, ipv6 := true, true
	for _, o := range of {
		ipv4, ipv6 = ipv4 && o.family == 4, ipv6 && o.family == 6
	}
	s.Account[s.at-1].IPv4, s.Account[s.at-1].IPv6 = ipv4, ipv6
	s.changes = append(s.changes, change{line: s.at, command: command, of: of, from: s.from})
}

func (s *scanner) notCarriedOut(c change) {
	if c.doubt != "" {
		s.note(leftOut, c.line, "line %d: %s: %s", c.line, c.doubt, c.command)
		return
	}
	s.note(leftOut, c.line, "line %d: a command that may change the machine's state is not carried out: %s", c.line, c.command)
}

// state returns what a block shows.
func (b *Block) state() state {
	first, _, _ := strings.Cut(string(b.Text), "\n")
	_, _, ipv6 := stateOf(first)
	switch b.Kind {
	case IPRoute, IPRule:
		s := state{b.Kind, familyOf(b.command.ipv6 || ipv6), ""}
		if b.Kind == IPRoute {
			s.table = cmp.Or(b.command.table, "main")
			if m := routeTable.FindStringSubmatch(first); m != nil && b.verb != "" {
				s.table = m[1]
			}
			s.table = strings.TrimPrefix(s.table, "all")
		}
		return s
	case IPAddress: // what "ip addr" shows has no name
		return state{b.Kind, 0, b.form}
	case NFTText, NFTCommand, NFTJSON:
		s := state{kind: NFTText}
		if m := nfttext.TableLine.FindStringSubmatch(first); m != nil {
			s.table = cmp.Or(m[1], "ip") + " " + m[2]
		} else if m := nfttext.CommandLine.FindStringSubmatch(first); m != nil && m[4] != "" {
			s.table = cmp.Or(m[3], "ip") + " " + m[4]
		} else if b.nft.table != "" {
			s.table = b.nft.family + " " + b.nft.table
		}
		return s
	case IPSetSave:
		return state{kind: IPSetList}
	}
	return state{kind: b.Kind}
}

// state returns what a run shows. Its table is empty where only other rules tell it.
func (r *run) state() state {
	family := r.family
	for i := range r.rules {
		family = max(family, r.rules[i].rule.Family())
	}
	return state{ipTables, max(family, 4), cmp.Or(r.table, r.needs(), r.output.table())}
}

// listings has the line of the last command that listed all of a state.
type listings map[state]int

// of returns the line for a state; 0 for none.
func (l listings) of(s state) (last int) {
	for whole, line := range l {
		if whole.covers(s) {
			last = max(last, line)
		}
	}
	return last
}

// listings returns those that blocks and runs show. Each of a table's built-in chains is in its listing.
func (s *scanner) listings() listings {
	all := listings{}
	for i := range s.blocks {
		if b := &s.blocks[i]; b.whole && !b.Filtered {
			whole := b.state()
			if whole.kind == NFTText {
				whole.table = "" // all tables
			}
			all[whole] = b.prompt
		}
	}
	chains := map[state]map[string]int{}
	for _, r := range s.found {
		if of := r.state(); r.whole && !r.alone {
			if chains[of] == nil {
				chains[of] = map[string]int{}
			}
			chains[of][r.chain] = cmp.Or(r.command, r.line)
		}
	}
	for of, at := range chains {
		last := math.MaxInt
		for _, chain := range iptables.BuiltIn(of.table) {
			if at[chain] > 0 || chain != "INPUT" || of.table != iptables.NAT { // which nat has since Linux 2.6.36
				last = min(last, at[chain])
			}
		}
		if last < math.MaxInt {
			all[of] = last
		}
	}
	return all
}

// settle states the fate of what a later listing shows again. A command that may change a state has no effect on the answer only if a
// listing of all of that state follows, or if nothing of it was read before. What was read before such a listing is an earlier state.
func (s *scanner) settle() {
	listings, first := s.listings(), map[state]int{} // the first line that shows something of a state
	read := func(of state, line int) {
		if first[of] == 0 || line < first[of] {
			first[of] = line
		}
	}
	for _, r := range s.found {
		read(r.state(), r.line)
	}
	s.blocks = slices.DeleteFunc(s.blocks, func(b Block) bool {
		read(b.state(), b.Line)
		earlier := listings.of(b.state()) > b.Line
		for i := 0; earlier && i < len(b.numbers); i++ {
			s.Account[b.numbers[i]-1] = snapshot.TextLine{Fate: snapshot.LineNoEffect, As: "an earlier state"}
		}
		return earlier
	})
	left := map[int]bool{}
	for _, c := range s.changes {
		met, stale, before := false, false, c.doubt != ""
		for of, line := range first {
			if of.kind == ipTables && s.until > 0 && c.line >= s.until {
				continue // the rules are those of an earlier time
			}
			before = before || line < c.line
			if slices.ContainsFunc(c.of, of.meets) {
				met, stale = true, stale || (line < c.line || c.doubt != "") && listings.of(of) < c.line
			}
		}
		if stale || !met && before { // of what is not shown at all, nothing is known, unless all is shown below
			left[c.line] = true
			s.notCarriedOut(c)
		}
	}
	for _, c := range s.changes {
		if !left[c.line] {
			s.Account[c.line-1] = snapshot.TextLine{Fate: snapshot.LineNoEffect, As: "a command before what it may change is listed"}
		}
	}
}
