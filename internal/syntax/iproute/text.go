package iproute

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
)

// ParseRoutesText reads what "ip route" prints without -j ("default via 10.0.0.1 dev eth0 proto dhcp metric 100"), as people paste it:
// of one table, or of all with "table NAME" in the lines. ipv6 says what "default" is where nothing in the line does. A route of which only
// the destination can be read has Route.Unknown; its line is among the bad ones, too.
func ParseRoutesText(text string, ipv6 bool) ([]fib.Route, []LineError) {
	var routes []fib.Route
	var bad []LineError
	last := -1 // the route that lines with nexthops belong to; -1 where it could not be read
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if words[0] != "nexthop" {
			last = -1
			r, err := routeText(words, ipv6)
			if err != nil {
				bad = append(bad, LineError{i + 1, err, !r.Destination.IsValid()})
				r.Unknown = "its line cannot be read"
			}
			if r.Destination.IsValid() {
				last, routes = len(routes), append(routes, r)
			}
			continue
		}
		err := errors.New("nexthop without a route above it")
		if last >= 0 {
			err = addNexthop(&routes[last], words[1:])
		}
		if err != nil {
			bad = append(bad, LineError{i + 1, err, last < 0})
			if last >= 0 {
				routes[last].Unknown = "the line of one of its next hops cannot be read"
			}
		}
	}
	return routes, bad
}

// LineError is a line that cannot be read.
type LineError struct {
	Line int // from 1
	Err  error
	// Unread says that nothing of it was kept.
	Unread bool
}

// routeTypes are the words that can stand before a route's destination (ip-route(8)).
var routeTypes = wordSet("unicast local broadcast multicast anycast blackhole unreachable prohibit throw nat")

// IsRouteType reports whether a word can stand before a route's destination.
func IsRouteType(word string) bool { return routeTypes[word] }

func routeText(words []string, ipv6 bool) (fib.Route, error) {
	j := routeJSON{}
	if routeTypes[words[0]] {
		j.Type, words = words[0], words[1:]
	}
	if len(words) == 0 {
		return fib.Route{}, fmt.Errorf("no destination")
	}
	j.Dst, words = words[0], words[1:]
	var bad error
	for len(words) > 0 && bad == nil {
		var n int
		if n, bad = j.word(words); bad == nil {
			words = words[n:]
		}
	}
	if j.Dst == "default" && ipv6 && j.Pref == "" {
		j.Pref = "medium"
	}
	r, err := j.route()
	return r, cmp.Or(bad, err)
}

// word reads one attribute of a route and tells how many words it took.
func (j *routeJSON) word(words []string) (int, error) {
	switch words[0] {
	case "onlink", "linkdown", "dead", "pervasive", "offload", "trap", "notify", "cloned", "rt_trap", "rt_offload":
		j.Flags = append(j.Flags, words[0])
		return 1, nil
	case "encap":
		j.Encap = text(strings.Join(words[1:], " "))
		return len(words), nil
	}
	if len(words) < 2 {
		return 0, fmt.Errorf("%q wants a value, or is not understood", words[0])
	}
	value := words[1]
	if field := j.field(words[0]); field != nil {
		*field = value
		return 2, nil
	}
	switch {
	case words[0] == "via" && (value == "inet6" || value == "inet"):
		if len(words) < 3 {
			return 0, fmt.Errorf("via %s wants an address", value)
		}
		j.Via = &viaJSON{Family: value, Host: words[2]}
		return 3, nil
	case words[0] == "via":
		j.Gateway = value
	case words[0] == "metric":
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil {
			return 0, fmt.Errorf("metric %q is no number", value)
		}
		j.Metric = uint32(n)
	case !unused[words[0]]:
		return 0, fmt.Errorf("%q is not understood", words[0])
	case value == "lock" && len(words) > 2: // "mtu lock 1400"
		return 3, nil
	}
	return 2, nil
}

// field returns what a word's value is put into as it stands; nil for others.
func (j *routeJSON) field(word string) *string {
	return map[string]*string{
		"dev": &j.Dev, "src": &j.PrefSrc, "scope": &j.Scope, "proto": &j.Protocol, "from": &j.From, "pref": &j.Pref,
		"table": (*string)(&j.Table), "tos": (*string)(&j.TOS), "dsfield": (*string)(&j.TOS),
	}[word]
}

// unused are the words with values that do not decide where a packet goes.
var unused = wordSet("nhid realm realms mtu advmss hoplimit initcwnd initrwnd expires error rtt window cwnd quickack congctl features rto_min weight")

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}

func addNexthop(r *fib.Route, words []string) error {
	var j routeJSON
	weight := 1
	for i := 0; i < len(words); {
		if words[i] == "weight" && i+1 < len(words) {
			n, err := strconv.Atoi(words[i+1])
			if err != nil || n < 1 {
				return fmt.Errorf("weight %q is no number from 1", words[i+1])
			}
			weight = n
		}
		n, err := j.word(words[i:])
		if err != nil {
			return err
		}
		i += n
	}
	way, err := nexthopJSON{Gateway: j.Gateway, Dev: j.Dev, Via: j.Via, Weight: weight, Flags: j.Flags, Encap: j.Encap}.nexthop()
	if err != nil {
		return err
	}
	if j.Encap != "" {
		r.Unknown = "encap " + string(j.Encap)
	}
	r.Nexthops = append(r.Nexthops, way)
	if r.Destination.Bits() == 0 && way.Gateway.Is6() && j.Via == nil {
		r.Destination = defaultPrefix(true)
	}
	return nil
}

// ParseLinksText reads what "ip addr" prints without -j: links, with the addresses that they have.
func ParseLinksText(text string) ([]fib.Link, []fib.Address, error) {
	var links []fib.Link
	var addresses []fib.Address
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		var err error
		switch {
		case len(words) < 2:
			continue
		case strings.HasSuffix(words[0], ":") && line[0] != ' ' && line[0] != '\t':
			var l fib.Link
			l, err = linkText(words)
			links = append(links, l)
		case len(links) == 0:
			err = fmt.Errorf("stands before the first interface")
		case words[0] == "inet" || words[0] == "inet6":
			var a fib.Address
			a, err = addressText(words[1:], links[len(links)-1].Name)
			addresses = append(addresses, a)
		case strings.HasPrefix(words[0], "link/"):
			l := &links[len(links)-1]
			l.Type = strings.TrimPrefix(words[0], "link/")
			l.MAC, _ = packet.ParseMAC(words[1])
		case words[0] == "veth" || words[0] == "bridge":
			links[len(links)-1].Kind = words[0]
		}
		if err != nil {
			return nil, nil, fmt.Errorf("addresses, line %d: %w", i+1, err)
		}
	}
	return links, addresses, nil
}

// linkText reads "9: eth0@if10: <BROADCAST,UP,LOWER_UP> mtu 1500 qdisc noqueue master cbr0 state UP".
func linkText(words []string) (fib.Link, error) {
	index, err := strconv.Atoi(strings.TrimSuffix(words[0], ":"))
	if err != nil || len(words) < 3 {
		return fib.Link{}, fmt.Errorf("no interface: %s", strings.Join(words, " "))
	}
	name, peer, _ := strings.Cut(strings.TrimSuffix(words[1], ":"), "@")
	l := fib.Link{Index: index, Name: name, PeerNetNS: -1}
	l.Peer, _ = strconv.Atoi(strings.TrimPrefix(peer, "if"))
	flags := strings.Split(strings.Trim(words[2], "<>"), ",")
	l.Up, l.LowerUp, l.NoARP = slices.Contains(flags, "UP"), !slices.Contains(flags, "NO-CARRIER"), slices.Contains(flags, "NOARP")
	for i := 3; i+1 < len(words); i += 2 {
		switch words[i] {
		case "mtu":
			l.MTU, _ = strconv.Atoi(words[i+1])
		case "master":
			l.Master = words[i+1]
		}
	}
	return l, nil
}

func addressText(words []string, link string) (fib.Address, error) {
	j := addressJSON{}
	prefix := words[0]
	for i := 1; i < len(words); i++ {
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		switch words[i] {
		case "peer":
			j.Local, prefix = prefix, value
		case "brd":
			j.Broadcast = value
		case "scope":
			j.Scope = value
		case "secondary":
			j.Secondary = true
		case "deprecated":
			j.Deprecated = true
		case "tentative":
			j.Tentative = true
		case "temporary":
			j.Temporary = true
		}
	}
	p, err := parseInterfacePrefix(prefix)
	if err != nil {
		return fib.Address{}, err
	}
	j.Bits = p.Bits()
	if j.Local != "" {
		j.Address = p.Addr().String()
	} else {
		j.Local = p.Addr().String()
	}
	return j.address(link)
}

// parseInterfacePrefix keeps the host's bits.
func parseInterfacePrefix(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		return parsePrefix(s)
	}
	return netip.ParsePrefix(s)
}

// ParseRulesText reads what "ip rule" prints without -j, or "ip -6 rule" with ipv6 set ("100:	from 10.0.0.0/8 fwmark 0x1 lookup 100").
func ParseRulesText(text string, ipv6 bool) ([]fib.Rule, error) {
	var rules []fib.Rule
	for i, line := range strings.Split(text, "\n") {
		priority, rest, found := strings.Cut(line, ":")
		if strings.TrimSpace(line) == "" {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(priority))
		if err != nil || !found {
			return nil, fmt.Errorf("policy rules, line %d: priority and colon expected", i+1)
		}
		rules = append(rules, ruleText(n, rest, ipv6))
	}
	return rules, nil
}

// ruleWords are the words of "ip rule" that a value follows: the members that the JSON has for it, and what stands between their values.
// A word with a slash is for values with a mask.
var ruleWords = map[string]struct {
	between string
	members []string
}{
	"from": {"/", []string{"src", "srclen"}}, "to": {"/", []string{"dst", "dstlen"}}, "iif": {"", []string{"iif"}},
	"oif": {"", []string{"oif"}},
	"tos": {"", []string{"tos"}}, "dscp": {"/", []string{"dscp", "dscp_mask"}}, "fwmark": {"/", []string{"fwmark", "fwmask"}},
	"lookup": {"", []string{"table"}}, "table": {"", []string{"table"}}, "goto": {"", []string{"goto"}},
	"suppress_prefixlength": {"", []string{"suppress_prefixlen"}}, "suppress_ifgroup": {"", []string{"suppress_ifgroup"}},
	"ipproto": {"", []string{"ipproto"}}, "sport": {"-", []string{"sport_start", "sport_end"}},
	"dport": {"-", []string{"dport_start", "dport_end"}}, "sport/": {"/", []string{"sport", "sport_mask"}},
	"dport/": {"/", []string{"dport", "dport_mask"}}, "uidrange": {"-", []string{"uid_start", "uid_end"}},
	"proto": {"", []string{"protocol"}}, "protocol": {"", []string{"protocol"}}, "realms": {"/", []string{"flow_from", "flow_to"}},
}

// numbers are the members whose values are numbers, with their bits.
var numbers = map[string]int{"srclen": 8, "dstlen": 8, "fwmark": 32, "fwmask": 32, "goto": 32, "suppress_prefixlen": 8, "sport_start": 16,
	"sport_end": 16, "dport_start": 16, "dport_end": 16, "sport": 16, "sport_mask": 16, "dport": 16, "dport_mask": 16, "dscp_mask": 6,
	"uid_start": 32, "uid_end": 32}

// ruleText reads a rule's text as its JSON. What is not understood is a member that the JSON does not have.
func ruleText(priority int, text string, ipv6 bool) fib.Rule {
	j := map[string]any{"priority": priority}
	words := strings.Fields(text)
	for i := 0; i < len(words); i++ {
		word := words[i]
		value, takes := ruleWords[word]
		switch {
		case takes && i+1 < len(words):
			i++
			if masked, ok := ruleWords[word+"/"]; ok && strings.Contains(words[i], "/") {
				value = masked
			}
			if words[i] == "[l3mdev-table]" {
				j["l3mdev"] = true
			} else if !setMembers(j, value.members, words[i], value.between) {
				j["value of "+word] = words[i]
			}
		case word == "blackhole", word == "unreachable", word == "prohibit":
			j["action"] = word
		case word != "[unresolved]" && word != "[detached]":
			j[word] = true
		}
	}
	if j["table"] == nil && j["goto"] == nil && j["action"] == nil && j["l3mdev"] == nil {
		j["nop"] = true
	}
	data, err := json.Marshal(j)
	var r fib.Rule
	if err == nil {
		r, err = parseRule(data, ipv6)
	}
	if r.Priority, r.IPv6 = priority, ipv6; r.Unknown || err != nil {
		r.Unknown, r.Text = true, strings.TrimSpace(text)
	}
	return r
}

// setMembers gives a value's parts to the members; a range of one is its own end.
func setMembers(j map[string]any, members []string, value, between string) bool {
	parts := []string{value}
	if between != "" {
		parts = strings.Split(value, between)
	}
	if between == "-" && len(parts) == 1 {
		parts = append(parts, value)
	}
	if len(parts) > len(members) {
		return false
	}
	for i, part := range parts {
		j[members[i]] = part
		if bits := numbers[members[i]]; bits > 0 {
			n, err := strconv.ParseUint(part, 0, bits)
			if err != nil {
				return false
			}
			j[members[i]] = n
		}
	}
	return true
}
