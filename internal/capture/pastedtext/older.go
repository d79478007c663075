package pastedtext

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/packet"
)

// older takes a line of a program that ip(8) replaced, or of ip -br, and writes what it says as ip itself does: "route -n", "netstat -rn",
// "ifconfig", "ip -br addr" and "ip -br link".
func (s *scanner) older(line string) bool {
	fields := strings.Fields(line)
	oldLink, alone := oldIfconfigLink.FindStringSubmatch(line), addressAlone.FindStringSubmatch(line)
	one := addressOneLine.FindStringSubmatch(line)
	heading, link, brief := routeHeading(fields), ifconfigLink.FindStringSubmatch(line), briefLink.FindStringSubmatch(line)
	switch {
	case heading != "":
		s.form = heading
	case link != nil:
		s.form, s.link = ifconfig, link[1]
		flags := strings.ReplaceAll(link[2], "RUNNING", "RUNNING,LOWER_UP")
		s.addLine(IPAddress, false, fmt.Sprintf("%d: %s: <%s> mtu %s", s.nextLink(), link[1], flags, link[3]))
	case oldLink != nil:
		s.form, s.link = oldIfconfig, oldLink[1]
		s.addLine(IPAddress, false, fmt.Sprintf("%d: %s: <UP,LOWER_UP> mtu 1500", s.nextLink(), s.link))
	case one != nil:
		if s.form != oneLine || s.link != one[2] || s.lastEnd != s.at-1 {
			s.form, s.link = oneLine, one[2]
			s.addLine(IPAddress, false, fmt.Sprintf("%s: %s: <UP,LOWER_UP> mtu 1500", one[1], one[2]))
		}
		s.addLine(IPAddress, false, strings.TrimSpace(one[3]))
	case alone != nil && (s.form == alone4 || s.lastEnd != s.at-1):
		s.form, s.filtered = alone4, true
		s.addLine(IPAddress, false, fmt.Sprintf("%d: %s: <UP,LOWER_UP> mtu 1500", s.nextLink(), alone[1]))
		s.addLine(IPAddress, false, line)
	case brief != nil && isBrief(brief[3]):
		s.briefLink(brief[1], brief[2], strings.Fields(brief[3]))
	case s.form == routes || s.form == netstat:
		route := oldRoute(fields, s.form)
		if route == "" {
			s.form = ""
			return false
		}
		s.addLine(IPRoute, false, route)
	case s.form == oldIfconfig && s.lastEnd == s.at-1:
		s.oldIfconfig(line)
	case s.form == ifconfig && s.lastEnd == s.at-1:
		return s.ifconfig(fields)
	default:
		return false
	}
	s.lastEnd = s.at
	return true
}

// The forms that have headings: what stands in their columns follows from them.
const (
	routes   = "Destination Gateway Genmask Flags Metric Ref Use Iface"
	netstat  = "Destination Gateway Genmask Flags MSS Window irtt Iface"
	ifconfig = "ifconfig"
	// oldIfconfig is its form before net-tools 2, and alone4 an address of ip addr whose interface is left out.
	oldIfconfig = "Link encap"
	alone4      = "inet"
	// oneLine is "ip -o addr", which does not show whether an interface is up.
	oneLine = "ip -o addr"
)

func routeHeading(fields []string) string {
	if heading := strings.Join(fields, " "); heading == routes || heading == netstat {
		return heading
	}
	return ""
}

var (
	ifconfigLink    = regexp.MustCompile(`^([\w.@-]+): flags=[0-9]+<([A-Z0-9_,]*)>\s+mtu ([0-9]+)$`)
	oldIfconfigLink = regexp.MustCompile(`^([\w.:@-]+)\s+Link encap:`)
	oldAddress      = regexp.MustCompile(`^inet addr:(\S+)\s.*Mask:(\S+)`)
	addressAlone    = regexp.MustCompile(`^inet [0-9.]+/[0-9]+ .*\bscope (?:global|host|link) (?:\w+ )*([\w.@-]+)$`)
	addressOneLine  = regexp.MustCompile(`^([0-9]+): ([\w.@-]+)\s+(inet6? [0-9a-f.:/]+ [^\\]*)(?:\\.*)?$`)
	briefLink       = regexp.MustCompile(`^([\w.@-]+)\s+(UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT|NOTPRESENT)(?:\s+(.*))?$`)
)

// oldRoute returns a line of route -n as ip route prints it; "" for another line.
func oldRoute(fields []string, heading string) string {
	if len(fields) != 8 {
		return ""
	}
	to, err := netip.ParseAddr(strings.Replace(fields[0], "default", "0.0.0.0", 1))
	mask, err2 := netip.ParseAddr(fields[2])
	if err != nil || err2 != nil || !to.Is4() || !mask.Is4() {
		return ""
	}
	ones, bits := net.IPMask(mask.AsSlice()).Size()
	if bits == 0 {
		return ""
	}
	route := netip.PrefixFrom(to, ones).String()
	if strings.Contains(fields[3], "!") {
		return "unreachable " + route
	}
	if via, err := netip.ParseAddr(fields[1]); err == nil && strings.Contains(fields[3], "G") {
		route += " via " + via.String()
	}
	route += " dev " + fields[7]
	if heading == routes && fields[4] != "0" {
		route += " metric " + fields[4]
	}
	return route
}

// ifconfig takes a line below an interface's name.
func (s *scanner) ifconfig(fields []string) bool {
	switch {
	case len(fields) >= 4 && fields[0] == "inet" && fields[2] == "netmask":
		mask, err := netip.ParseAddr(fields[3])
		if err != nil || !mask.Is4() {
			return false
		}
		ones, _ := net.IPMask(mask.AsSlice()).Size()
		broadcast := ""
		if len(fields) >= 6 && fields[4] == "broadcast" {
			broadcast = " brd " + fields[5]
		}
		s.addLine(IPAddress, false, fmt.Sprintf("inet %s/%d%s scope global %s", fields[1], ones, broadcast, s.link))
	case len(fields) >= 4 && fields[0] == "inet6" && fields[2] == "prefixlen":
		scope := "global"
		if strings.HasPrefix(fields[1], "fe80") {
			scope = "link"
		}
		s.addLine(IPAddress, false, fmt.Sprintf("inet6 %s/%s scope %s", fields[1], fields[3], scope))
	case len(fields) >= 2 && fields[0] == "ether":
		s.addLine(IPAddress, false, "link/ether "+fields[1])
	case len(fields) >= 1 && slices.Contains([]string{"loop", "RX", "TX", "device", "unspec", "tunnel"}, fields[0]):
	default:
		return false
	}
	s.lastEnd = s.at
	return true
}

// oldIfconfig takes a line below an interface's name: only the address of IPv4 says something.
func (s *scanner) oldIfconfig(line string) {
	m := oldAddress.FindStringSubmatch(line)
	if m == nil {
		return
	}
	if mask, err := netip.ParseAddr(m[2]); err == nil && mask.Is4() {
		ones, _ := net.IPMask(mask.AsSlice()).Size()
		s.addLine(IPAddress, false, fmt.Sprintf("inet %s/%d scope global %s", m[1], ones, s.link))
	}
}

// isBrief tells what can stand behind an interface's state: addresses, or its link-layer address and its flags.
func isBrief(rest string) bool {
	for _, word := range strings.Fields(rest) {
		if _, err := netip.ParsePrefix(word); err != nil && packet.MAC.IsZero(macOf(word)) && word[0] != '<' && word != "peer" {
			return false
		}
	}
	return true
}

func macOf(word string) packet.MAC {
	mac, _ := packet.ParseMAC(word)
	return mac
}

// briefLink reads an interface of "ip -br". For "ip -br addr", its flags follow from its state.
func (s *scanner) briefLink(name, state string, rest []string) {
	flags := map[string]string{"UP": "<UP,LOWER_UP>", "UNKNOWN": "<UP,LOWER_UP>"}[state]
	kind := "link/ether 00:00:00:00:00:00"
	var addresses []string
	for _, word := range rest {
		switch {
		case word[0] == '<':
			flags = word
		case strings.Contains(word, "/"):
			addresses = append(addresses, word)
		case word != "peer":
			kind = "link/ether " + word
		}
	}
	if name == "lo" {
		kind = "link/loopback 00:00:00:00:00:00"
	}
	s.addLine(IPAddress, false, fmt.Sprintf("%d: %s: %s mtu 1500", s.nextLink(), name, cmp.Or(flags, "<>")))
	s.addLine(IPAddress, false, kind)
	for _, a := range addresses {
		family, scope := "inet", "global"
		if p := netip.MustParsePrefix(a); p.Addr().Is6() {
			family = "inet6"
		} else if p.Addr().IsLoopback() {
			scope = "host"
		}
		if netip.MustParsePrefix(a).Addr().IsLinkLocalUnicast() {
			scope = "link"
		}
		s.addLine(IPAddress, false, family+" "+a+" scope "+scope+" "+name)
	}
}

// nextLink numbers interfaces whose listing has no numbers.
func (s *scanner) nextLink() int {
	s.links++
	return s.links
}

// neighbourLine is an entry that "ip neigh" lists, with its state (ip-neighbour(8)).
var neighbourLine = regexp.MustCompile(`^[0-9a-f.:]+ dev \S+ +(?:lladdr \S+ +)?(?:used \S+ +|ref \d+ +|probes \d+ +|router +|proxy +|extern_learn +)*` +
	`(REACHABLE|STALE|DELAY|PROBE|PERMANENT|NOARP|NONE|FAILED|INCOMPLETE)$`)

// neighbour takes an entry of "ip neigh". The walk assumes that neighbours answer, which one in these states may do.
func (s *scanner) neighbour(line string) bool {
	m := neighbourLine.FindStringSubmatch(line)
	switch {
	case m == nil:
		return false
	case m[1] == "FAILED" || m[1] == "INCOMPLETE":
		s.NotRead(s.at, "a neighbour that does not answer")
	default:
		s.NoEffect(s.at, "a neighbour that answers, as is assumed")
	}
	return true
}

var (
	// seenPacket is one that tcpdump shows, or that the kernel logs (nf_log_syslog).
	seenPacket = regexp.MustCompile(`^(?:[0-9-]{10} )?[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6} (?:[\w.-]+ +(?:In|Out|P|B|M) +)?(?:IP6? |ARP, )|\bIN=\S* OUT=\S* .*\bSRC=\S+ DST=\S+ `)
	// discarded matches the prefix of a log that tells of a drop, which the rules that were read may not have.
	discarded = regexp.MustCompile(`(?i)block|drop|reject|den[iy]|discard`)
)

// packet takes a packet that was seen. It says nothing of the machine's state, unless it was discarded.
func (s *scanner) packet(line string) bool {
	is := seenPacket.MatchString(line) && !discarded.MatchString(line) && !ruleToken.MatchString(line)
	if is {
		s.NoEffect(s.at, "a packet that was seen")
	}
	return is
}

// fdbLine is an entry that "bridge fdb" lists.
var fdbLine = regexp.MustCompile(`^(?:[0-9a-f]{2}:){5}[0-9a-f]{2} dev \S+`)

// IPVSService is a service that ipvsadm -Ln lists: "TCP  10.96.0.10:53 rr", or "FWM  5 rr".
var IPVSService = regexp.MustCompile(`^(TCP|UDP|SCTP|FWM)\s+(\S+)\s+[a-z]{2,10}(?:\s+.*)?$`)
