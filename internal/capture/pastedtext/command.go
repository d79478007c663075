package pastedtext

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/syntax/iproute"
	"packetwalk.dev/internal/syntax/nfttext"
)

// ipCommand holds the arguments of an ip command.
type ipCommand struct {
	table string // of routes: "" for main
	ipv6  bool
	some  bool // not for all that there are: of one interface or destination, one route
	vrf   bool // its table is a VRF's name
	get   bool // for the route that one packet takes
	lists BlockKind
	part  string // of what is known of links: one family's addresses, or "link" for none
}

// ipCommandLine is "ip -4 route show table 2" in its parts, with its short forms (iproute2 takes a word's beginning for the word).
var ipCommandLine = regexp.MustCompile(
	`(?:^|[\s/])ip\s+((?:-\S+\s+)*)(?:-n(?:etns)?\s+\S+\s+)?(r|ro|rou|rout|route|a|ad|add|addr|address|ru|rul|rule|l|li|lin|link)(?:\s+([^|>]*))?(?:[|>]|$)`)

// parseIP reads a command line; the zero value is for any other command.
func parseIP(command string) ipCommand {
	m := ipCommandLine.FindStringSubmatch(command)
	if m == nil {
		return ipCommand{}
	}
	c := ipCommand{ipv6: strings.Contains(m[1], "-6"), lists: map[bool]BlockKind{true: IPRoute, false: IPAddress}[m[2][0] == 'r']}
	switch {
	case strings.HasPrefix(m[2], "ru"):
		c.lists = IPRule
	case m[2][0] == 'l':
		c.part = "link"
	case m[2][0] == 'a' && strings.Contains(m[1], "-4"):
		c.part = "IPv4"
	case m[2][0] == 'a' && c.ipv6:
		c.part = "IPv6"
	}
	words := strings.Fields(m[3])
	if len(words) > 0 && strings.HasPrefix("get", words[0]) {
		return ipCommand{ipv6: c.ipv6, some: true, get: true}
	}
	if len(words) > 0 && (strings.HasPrefix("show", words[0]) || strings.HasPrefix("list", words[0]) || words[0] == "ls") {
		words = words[1:]
	}
	ofRoutes := strings.HasPrefix(m[2], "r") && !strings.HasPrefix(m[2], "ru")
	if len(words) == 2 && ofRoutes && words[1] != "cache" && (strings.HasPrefix("table", words[0]) || words[0] == "vrf") {
		c.table, c.vrf = words[1], words[0] == "vrf"
		words = nil
	}
	c.some = len(words) > 0
	return c
}

// ofPacket matches what "ip route get" prints behind a route.
var ofPacket = regexp.MustCompile(`\s+uid [0-9]+\s*$`)

// withTable writes the table into each line with a route that names none.
func (c ipCommand) withTable(text string) string {
	if c.table == "" || c.table == "all" {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		words := strings.Fields(line)
		if len(words) > 0 && words[0] != "nexthop" && !slices.Contains(words, "table") {
			at := len(words[0])
			if iproute.IsRouteType(words[0]) && len(words) > 1 {
				at += 1 + len(words[1])
			}
			joined := strings.Join(words, " ")
			line = joined[:at] + " table " + c.table + joined[at:]
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// nftListing is "nft list chain ip nat POSTROUTING", and what it lists without a name.
var nftListing = regexp.MustCompile(`(?:^|[\s/])nft\s(?:-\S+\s+)*list\s+` +
	`(?:(ruleset)(\s+(?:ip|ip6|inet|bridge|arp|netdev)\b)?|(chain|table)\s+(?:(ip|ip6|inet|bridge|arp|netdev)\s+)?([\w.-]+))`)

// nftOf holds the arguments of an nft command.
type nftOf struct {
	family, table string // "" for none
	ruleset       bool   // of all families
	tables        bool   // it lists whole tables
}

// parseNFT reads a command line; the zero value is for any other command.
func parseNFT(command string) nftOf {
	m := nftListing.FindStringSubmatch(command)
	if m == nil {
		return nftOf{}
	}
	return nftOf{family: cmp.Or(m[4], "ip"), table: m[5], ruleset: m[1] != "" && m[2] == "", tables: m[3] != "chain"}
}

// nftMade takes a command that adds rules, with or without the program's name: "nft add rule ip nat postrouting masquerade".
func (s *scanner) nftMade(line string) bool {
	command, _ := commandOf(line)
	command = strings.TrimPrefix(strings.TrimPrefix(command, "sudo "), "nft ")
	command = strings.TrimPrefix(command, "-a ")
	command = strings.NewReplacer(`'`, "", `\`, "").Replace(command)
	if n := len(command); n > 1 && command[0] == '"' && command[n-1] == '"' {
		command = command[1 : n-1]
	}
	if !nfttext.CommandLine.MatchString(command) || nfttext.Braces(command) != 0 {
		return false
	}
	if m := nfttext.CommandLine.FindStringSubmatch(command); m[1] != "add" && m[1] != "create" && m[1] != "insert" || m[4] == "" || m[2] == "table" && strings.Contains(command, "dormant") {
		s.reset()
		s.noteChange(command, mentions("nft "+command))
		return true
	}
	s.addLine(NFTCommand, true, command)
	return true
}

// joined returns the line at an index. To a command whose lines end with "\" it adds those on which it goes on, and reports how many.
func (s *scanner) joined(at int) (line string, more int) {
	line = s.lines[at].text
	command, _ := commandOf(line)
	command = command[len(wrapper.FindString(command)):]
	if s.whole != "" || !strings.HasSuffix(line, `\`) || !knows.MatchString(strings.TrimSpace(strings.TrimSuffix(command, `\`))) {
		return line, 0
	}
	for strings.HasSuffix(line, `\`) && at+more+1 < len(s.lines) && more < mostRuleLines && len(line) < longestRule {
		more++
		line = strings.TrimSpace(line[:len(line)-1]) + " " + s.lines[at+more].text
	}
	return line, more
}

// pass goes on behind the lines that a command went on in.
func (s *scanner) pass(more int) {
	if more == 0 {
		return
	}
	for i := range more {
		s.NoEffect(s.at+i+1, "goes on with the command above")
	}
	for _, last := range []*int{&s.madeIn.line, &s.lastRule.line, &s.lastEnd} {
		if *last >= s.at && *last <= s.at+1 {
			*last += more
		}
	}
	s.at += more
}
