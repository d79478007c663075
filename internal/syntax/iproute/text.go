package iproute

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
)

// ParseRoutesText reads what "ip route" prints without -j ("default via 10.0.0.1 dev eth0 proto dhcp metric 100"), as people paste it:
// of one table, or of all with "table NAME" in the lines. ipv6 says what "default" is where nothing in the line does.
func ParseRoutesText(text string, ipv6 bool) ([]fib.Route, error) {
	var routes []fib.Route
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var err error
		if words[0] == "nexthop" {
			if len(routes) == 0 {
				return nil, fmt.Errorf("routes, line %d: nexthop without a route above it", i+1)
			}
			err = addNexthop(&routes[len(routes)-1], words[1:])
		} else {
			var r fib.Route
			r, err = routeText(words, ipv6)
			routes = append(routes, r)
		}
		if err != nil {
			return nil, fmt.Errorf("routes, line %d: %w", i+1, err)
		}
	}
	return routes, nil
}

// routeTypes are the words that can stand before a route's destination (ip-route(8)).
var routeTypes = map[string]bool{
	"unicast": true, "local": true, "broadcast": true, "multicast": true, "anycast": true, "blackhole": true, "unreachable": true,
	"prohibit": true, "throw": true, "nat": true,
}

func routeText(words []string, ipv6 bool) (fib.Route, error) {
	j := routeJSON{}
	if routeTypes[words[0]] {
		j.Type, words = words[0], words[1:]
	}
	if len(words) == 0 {
		return fib.Route{}, fmt.Errorf("no destination")
	}
	j.Dst, words = words[0], words[1:]
	for len(words) > 0 {
		n, err := j.word(words)
		if err != nil {
			return fib.Route{}, err
		}
		words = words[n:]
	}
	if j.Dst == "default" && ipv6 && j.Pref == "" {
		j.Pref = "medium"
	}
	return j.route()
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
	switch words[0] {
	case "via":
		if value == "inet6" || value == "inet" {
			if len(words) < 3 {
				return 0, fmt.Errorf("via %s wants an address", value)
			}
			j.Via = &viaJSON{Family: value, Host: words[2]}
			return 3, nil
		}
		j.Gateway = value
	case "dev":
		j.Dev = value
	case "src":
		j.PrefSrc = value
	case "scope":
		j.Scope = value
	case "proto":
		j.Protocol = value
	case "table":
		j.Table = text(value)
	case "tos", "dsfield":
		j.TOS = text(value)
	case "from":
		j.From = value
	case "pref":
		j.Pref = value
	case "metric":
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil {
			return 0, fmt.Errorf("metric %q is no number", value)
		}
		j.Metric = uint32(n)
	case "nhid", "realm", "realms", "mtu", "advmss", "hoplimit", "initcwnd", "initrwnd", "expires", "error", "rtt", "window", "cwnd",
		"quickack",
		"congctl", "features", "rto_min", "weight":
		if value == "lock" && len(words) > 2 { // "mtu lock 1400"
			return 3, nil
		}
	default:
		return 0, fmt.Errorf("%q is not understood", words[0])
	}
	return 2, nil
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
		r.Destination = anywhere(true)
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
	l.Up, l.LowerUp = slices.Contains(flags, "UP"), slices.Contains(flags, "LOWER_UP")
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
		r := fib.Rule{Priority: n, IPv6: ipv6, Action: "nop", SuppressPrefixLength: -1, SuppressGroup: -1}
		words := strings.Fields(rest)
		for len(words) > 0 {
			took := setWord(&r, words)
			if took == 0 {
				r.Unknown, r.Text = true, strings.TrimSpace(line)
				took = 1
			}
			words = words[min(took, len(words)):]
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// setWord reads one selector or action of a rule. It returns how many words it took; 0 for one that is not understood.
func setWord(r *fib.Rule, words []string) int {
	value := ""
	if len(words) > 1 {
		value = words[1]
	}
	switch words[0] {
	case "not":
		r.Not = true
		return 1
	case "nop":
		return 1
	case "blackhole", "unreachable", "prohibit":
		r.Action = words[0]
		return 1
	case "[unresolved]", "[detached]":
		return 1
	case "proto", "protocol":
		return 2
	case "from":
		return ok(setPrefix(&r.From, value))
	case "to":
		return ok(setPrefix(&r.To, value))
	case "iif":
		r.In = value
	case "oif":
		r.Out = value
	case "tos":
		r.TOS = tosNumber(value)
	case "fwmark":
		return ok(setMark(r, value))
	case "lookup", "table":
		r.Action = "lookup"
		r.Table, r.TableName = tableNumber(value)
	case "goto":
		n, err := strconv.Atoi(value)
		r.Action, r.Goto = "goto", n
		return ok(err)
	case "suppress_prefixlength":
		n, err := strconv.Atoi(value)
		r.SuppressPrefixLength = n
		return ok(err)
	case "suppress_ifgroup":
		if r.SuppressGroup = groupNumber(value); r.SuppressGroup < 0 {
			return 0
		}
	case "ipproto":
		p, err := packet.ParseProtocol(value)
		r.Protocol = p
		return ok(err)
	case "sport":
		return ok(setRange(&r.SourcePorts[0], &r.SourcePorts[1], value))
	case "dport":
		return ok(setRange(&r.DestinationPorts[0], &r.DestinationPorts[1], value))
	case "uidrange":
		r.HasUIDs = true
		return ok(setRange(&r.UIDs[0], &r.UIDs[1], value))
	default:
		return 0
	}
	return 2
}

// ok is how many words a selector with a value takes: none where its value was not understood.
func ok(err error) int {
	if err != nil {
		return 0
	}
	return 2
}

func setPrefix(into *netip.Prefix, value string) (err error) {
	if value != "all" && value != "default" {
		*into, err = parsePrefix(value)
	}
	return err
}

func setMark(r *fib.Rule, value string) error {
	mark, mask, masked := strings.Cut(value, "/")
	m, err := strconv.ParseUint(mark, 0, 32)
	if err != nil {
		return err
	}
	r.Mark, r.Mask = uint32(m), 0xffffffff
	if masked {
		m, err = strconv.ParseUint(mask, 0, 32)
		r.Mask = uint32(m)
	}
	return err
}

// setRange reads "N" or "LOW-HIGH".
func setRange[N uint16 | uint32](low, high *N, value string) error {
	from, to, ranged := strings.Cut(value, "-")
	if !ranged {
		to = from
	}
	for _, end := range []struct {
		into *N
		text string
	}{{low, from}, {high, to}} {
		n, err := strconv.ParseUint(end.text, 10, 32)
		if err != nil || uint64(N(n)) != n {
			return fmt.Errorf("%q is no range", value)
		}
		*end.into = N(n)
	}
	return nil
}
