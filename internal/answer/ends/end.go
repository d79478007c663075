package ends

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// End is one end of a walk as a user names it. The zero value is no end.
//
//	pod/[NAMESPACE/]NAME[:PORT]   svc/[NAMESPACE/]NAME[:PORT]   node/NAME[:PORT]   vm/NAME[:PORT]
//	netns/NAME[:PORT]             internet[/NAME][:PORT]        ADDRESS[:PORT], an IPv6 address in brackets when a port follows
type End struct {
	Kind      Kind
	Namespace string // of a pod or service; "" where none was given
	Name      string // "" for an address, and for any host of the internet
	Address   netip.Addr
	Port      uint16 // 0 where none was given
}

// Kind is what an end names.
type Kind string

// The kinds of ends, as they are written.
const (
	Pod      Kind = "pod"
	Service  Kind = "svc"
	Node     Kind = "node"
	VM       Kind = "vm"
	NetNS    Kind = "netns" // a network namespace of a captured machine that is no pod
	Internet Kind = "internet"
	Address  Kind = "address" // not written: the address stands alone
)

// forms are what may be written for each kind, for errors.
var forms = map[Kind]string{
	Pod: "pod/[NAMESPACE/]NAME[:PORT]", Service: "svc/[NAMESPACE/]NAME[:PORT]", Node: "node/NAME[:PORT]", VM: "vm/NAME[:PORT]",
	NetNS: "netns/NAME[:PORT]", Internet: "internet[/NAME][:PORT]", Address: "ADDRESS[:PORT] or [IPv6ADDRESS]:PORT",
}

// otherNames are what people write for a kind, as kubectl lets them.
var otherNames = map[string]Kind{
	"pods": Pod, "po": Pod, "service": Service, "services": Service, "nodes": Node, "no": Node, "vms": VM,
}

// Parse reads an end. Its errors say what to write instead.
func Parse(s string) (End, error) {
	e, err := parse(s)
	if err != nil {
		return End{}, fmt.Errorf("end %q: %w", s, err)
	}
	return e, nil
}

func parse(s string) (End, error) {
	if s == "" {
		return End{}, fmt.Errorf("is empty; want for example pod/NAME, svc/NAME:80, node/NAME, internet or an address")
	}
	if strings.Contains(s, "://") {
		return End{}, fmt.Errorf("is a URL; leave out the scheme and the path")
	}
	kind, rest, named := strings.Cut(s, "/")
	switch k := Kind(kind); k {
	case Pod, Service, Node, VM, NetNS, Internet:
		if named {
			return parseNamed(k, rest)
		}
		if k != Internet {
			return End{}, fmt.Errorf("names no %s; want %s", k, forms[k])
		}
		return End{Kind: k}, nil
	}
	if word, port, ok := strings.Cut(s, ":"); ok && word == string(Internet) {
		n, err := parsePort(port)
		return End{Kind: Internet, Port: n}, err
	}
	return parseAddress(s, kind, named)
}

func parseNamed(kind Kind, rest string) (End, error) {
	e := End{Kind: kind}
	rest, port, ok := strings.Cut(rest, ":")
	if ok {
		var err error
		if e.Port, err = parsePort(port); err != nil {
			return End{}, err
		}
	}
	parts := strings.Split(rest, "/")
	e.Name = parts[len(parts)-1]
	switch {
	case len(parts) == 2 && (kind == Pod || kind == Service):
		e.Namespace = parts[0]
		if err := checkName("namespace", e.Namespace, true); err != nil {
			return End{}, err
		}
	case len(parts) > 1:
		return End{}, fmt.Errorf("has too many parts; want %s", forms[kind])
	}
	if err := checkName("name", e.Name, kind != VM && kind != NetNS && kind != Internet); err != nil {
		return End{}, fmt.Errorf("%w; want %s", err, forms[kind])
	}
	return e, nil
}

// checkName holds names to the characters that Kubernetes (RFC 1123, lower case) or Azure and the DNS (capitals and "_" too) let them have.
func checkName(what, name string, lower bool) error {
	if name == "" {
		return fmt.Errorf("the %s is empty", what)
	}
	if len(name) > 253 {
		return fmt.Errorf("the %s is longer than 253 characters", what)
	}
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		inner := c == '-' || c == '.'
		if !lower {
			letter = letter || c >= 'A' && c <= 'Z'
			inner = inner || c == '_'
		}
		switch {
		case letter, inner && i > 0 && i < len(name)-1:
		case c >= 'A' && c <= 'Z':
			return fmt.Errorf("the %s %q has capital letters, which Kubernetes' names do not", what, name)
		default:
			return fmt.Errorf("the %s %q cannot have %q there", what, name, rune(c))
		}
	}
	return nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '0' || s[0] == '+' {
		return 0, fmt.Errorf("bad port %q; want a number from 1 to 65535", s)
	}
	return uint16(n), nil
}

func parseAddress(s, kind string, named bool) (End, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return checkAddress(End{Kind: Address, Address: a})
	}
	if host, port, ok := cutPort(s); ok {
		if a, err := netip.ParseAddr(host); err == nil {
			n, err := parsePort(port)
			if err != nil {
				return End{}, err
			}
			return checkAddress(End{Kind: Address, Address: a, Port: n})
		}
	}
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
		if a, err := netip.ParseAddr(inner[:len(inner)-1]); err == nil && a.Is6() {
			return End{}, fmt.Errorf("brackets without a port; write %s, or %s:PORT", a, s)
		}
	}
	if _, err := netip.ParsePrefix(s); err == nil {
		return End{}, fmt.Errorf("is a range of addresses; want one address")
	}
	if k, ok := otherNames[kind]; ok && named {
		return End{}, fmt.Errorf("unknown kind %q; write %s", kind, forms[k])
	}
	return End{}, fmt.Errorf("neither an address nor a named end; want %s, %s, %s, %s, %s, %s or %s", forms[Pod], forms[Service],
		forms[Node], forms[VM], forms[NetNS], forms[Internet], forms[Address])
}

// cutPort cuts "10.0.0.1:80" and "[fd00::1]:80".
func cutPort(s string) (host, port string, ok bool) {
	if inner, bracket := strings.CutPrefix(s, "["); bracket {
		host, port, ok = strings.Cut(inner, "]:")
		return host, port, ok && strings.Contains(host, ":")
	}
	host, port, ok = strings.Cut(s, ":")
	return host, port, ok && !strings.Contains(port, ":")
}

func checkAddress(e End) (End, error) {
	switch a := e.Address; {
	case a.Zone() != "":
		return End{}, fmt.Errorf("has a zone; write %s", a.WithZone(""))
	case a.Is4In6():
		return End{}, fmt.Errorf("is an IPv4 address in IPv6 form; write %s", a.Unmap())
	}
	return e, nil
}

// String is the end as Parse reads it.
func (e End) String() string {
	s := string(e.Kind)
	switch {
	case e.Kind == Address && e.Port != 0:
		return netip.AddrPortFrom(e.Address, e.Port).String()
	case e.Kind == Address:
		return e.Address.String()
	case e.Namespace != "":
		s += "/" + e.Namespace
	}
	if e.Name != "" {
		s += "/" + e.Name
	}
	if e.Port != 0 {
		s += ":" + strconv.Itoa(int(e.Port))
	}
	return s
}

// withPort is how the end is written with a port.
func (e End) withPort() string {
	if e.Kind == Address && e.Address.Is6() {
		return "[" + e.String() + "]:PORT"
	}
	return e.String() + ":PORT"
}
