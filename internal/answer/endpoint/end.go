package endpoint

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// End is one end of a walk as a user names it. The zero value is no end.
//
//	pod/[NAMESPACE/]NAME[:PORT]   svc/[NAMESPACE/]NAME[:PORT|:PORTNAME]   deploy|sts|ds|job/[NAMESPACE/]NAME[:PORT]
//	node/NAME[:PORT]   vm/NAME[:PORT]   netns/NAME[:PORT]   internet[/NAME][:PORT]   DNSNAME[:PORT]
//	HOST[:PORT], a node, VM, internet host or network namespace by its name alone
//	ADDRESS[:PORT], an IPv6 address in brackets when a port follows
type End struct {
	Kind      Kind
	Namespace string // of a pod, a service or what manages pods; "" where none was given
	Name      string // "" for an address, and for any host of the internet; of a DNS name with the dot at its end, if any
	Address   netip.Addr
	Port      uint16 // 0 where none was given
	PortName  string // of a service's port, instead of Port
}

// Kind is what an end names.
type Kind string

// The kinds of ends, as they are written.
const (
	Pod         Kind = "pod"
	Service     Kind = "svc"
	Deployment  Kind = "deploy"
	StatefulSet Kind = "sts"
	DaemonSet   Kind = "ds"
	Job         Kind = "job"
	Node        Kind = "node"
	VM          Kind = "vm"
	NetNS       Kind = "netns" // a network namespace of a captured machine that is no pod
	Internet    Kind = "internet"
	HostName    Kind = "host"    // not written: the name of a host stands alone, without a dot
	DNSName     Kind = "name"    // not written: the name stands alone
	Address     Kind = "address" // not written: the address stands alone
)

// kindOfEnd describes a kind.
type kindOfEnd struct {
	Kind
	form       string   // what may be written
	names      []string // kubectl's other names, and what else people write
	groups     []string // API groups, as kubectl writes them behind a kind's name: KIND.GROUP, KIND.VERSION.GROUP
	namespaced bool
	controller string // which manages its pods: a snapshot.Controller's kind; "" for what manages none
}

// kinds are all kinds, in the order in which errors list them.
var kinds = []kindOfEnd{
	{Pod, "pod/[NAMESPACE/]NAME[:PORT]", []string{"pods", "po"}, []string{"v1."}, true, ""},
	{Service, "svc/[NAMESPACE/]NAME[:PORT]", []string{"service", "services"}, []string{"v1."}, true, ""},
	{Deployment, "deploy/[NAMESPACE/]NAME[:PORT]", []string{"deployment", "deployments"}, appsGroup, true, "ReplicaSet.apps"},
	{StatefulSet, "sts/[NAMESPACE/]NAME[:PORT]", []string{"statefulset", "statefulsets"}, appsGroup, true, "StatefulSet.apps"},
	{DaemonSet, "ds/[NAMESPACE/]NAME[:PORT]", []string{"daemonset", "daemonsets"}, appsGroup, true, "DaemonSet.apps"},
	{Job, "job/[NAMESPACE/]NAME[:PORT]", []string{"jobs"}, []string{"batch", "v1.batch"}, true, "Job.batch"},
	{Node, "node/NAME[:PORT]", []string{"nodes", "no"}, []string{"v1."}, false, ""},
	{VM, "vm/NAME[:PORT]", []string{"vms"}, nil, false, ""},
	{NetNS, "netns/NAME[:PORT]", nil, nil, false, ""},
	{Internet, "internet[/NAME][:PORT]", nil, nil, false, ""},
	{HostName, "the name of a node, VM or internet host[:PORT]", nil, nil, false, ""},
	{DNSName, "a DNS name such as NAME.NAMESPACE.svc.cluster.local[:PORT]", nil, nil, false, ""},
	{Address, "ADDRESS[:PORT] or [IPv6ADDRESS]:PORT", nil, nil, false, ""},
}

var appsGroup = []string{"apps", "v1.apps"}

// form returns what may be written for a kind; "" for what is none.
func (k Kind) form() string {
	for i := range kinds {
		if kinds[i].Kind == k {
			return kinds[i].form
		}
	}
	return ""
}

// Namespaced reports whether the objects of a kind are in a namespace.
func (k Kind) Namespaced() bool {
	for i := range kinds {
		if kinds[i].Kind == k {
			return kinds[i].namespaced
		}
	}
	return false
}

// isNamed reports whether a name follows the kind behind a slash.
func (k Kind) isNamed() bool { return k != HostName && k != DNSName && k != Address && k.form() != "" }

// kindOf reads a kind as kubectl takes it; what is none stays as it is.
func kindOf(s string) (Kind, error) {
	name, group, qualified := strings.Cut(s, ".")
	for i := range kinds {
		k := &kinds[i]
		switch {
		case k.Kind != Kind(name) && !slices.Contains(k.names, name), qualified && k.groups == nil:
			continue
		case qualified && !slices.Contains(k.groups, group):
			return "", fmt.Errorf("there is no %s of the API group %q; want %s", k.Kind, group, k.form)
		}
		return k.Kind, nil
	}
	return Kind(s), nil
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
	if named {
		k, err := kindOf(kind)
		if err != nil {
			return End{}, err
		}
		kind = string(k)
	}
	switch k := Kind(kind); {
	case k.isNamed() && named:
		return parseNamed(k, rest)
	case k == Internet:
		return End{Kind: k}, nil
	case k.isNamed():
		return End{}, fmt.Errorf("names no %s; want %s", k, k.form())
	}
	if word, port, ok := strings.Cut(s, ":"); ok && word == string(Internet) {
		n, err := parsePort(port)
		return End{Kind: Internet, Port: n}, err
	}
	if !named {
		if e, ok, err := parseDNSName(s); ok {
			return e, err
		}
		if e, ok, err := parseHostName(s); ok {
			return e, err
		}
	}
	return parseAddress(s, kind, named)
}

// parseDNSName reads a DNS name with a dot in it; ok is false for what is none, such as an address.
func parseDNSName(s string) (e End, ok bool, err error) {
	name, port, hasPort := strings.Cut(s, ":")
	name = strings.ToLower(name)
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	invalid := func(label string) bool { return checkName("name", label, true) != nil || len(label) > 63 }
	last := labels[len(labels)-1]
	if len(labels) < 2 || strings.Trim(last, "0123456789") == "" || len(name) > 253 || slices.ContainsFunc(labels, invalid) {
		return End{}, false, nil
	}
	e = End{Kind: DNSName, Name: name}
	if hasPort {
		e.Port, e.PortName, err = parseServicePort(port)
	}
	return e, true, err
}

// parseHostName reads the name of a host that stands alone; ok is false for what is none, such as an address.
func parseHostName(s string) (e End, ok bool, err error) {
	name, port, hasPort := strings.Cut(s, ":")
	if strings.Contains(name, ".") || strings.Trim(name, "0123456789") == "" || checkName("name", name, false) != nil || strings.Contains(port, ":") {
		return End{}, false, nil //nolint:nilerr // it is another kind of end
	}
	e = End{Kind: HostName, Name: name}
	if hasPort {
		e.Port, err = parsePort(port)
	}
	return e, true, err
}

// parseServicePort reads the number or the name of a service's port.
func parseServicePort(s string) (port uint16, name string, err error) {
	if port, err = parsePort(s); err == nil {
		return port, "", nil
	}
	if strings.Trim(s, "0123456789+") != "" && len(s) <= 63 && !strings.Contains(s, ".") && checkName("port", s, true) == nil {
		return 0, s, nil
	}
	return 0, "", fmt.Errorf("%w, or the name of a service's port", err)
}

func parseNamed(kind Kind, rest string) (End, error) {
	e := End{Kind: kind}
	rest, port, ok := strings.Cut(rest, ":")
	if ok {
		var err error
		if kind == Service {
			e.Port, e.PortName, err = parseServicePort(port)
		} else {
			e.Port, err = parsePort(port)
		}
		if err != nil {
			return End{}, err
		}
	}
	parts := strings.Split(rest, "/")
	e.Name = parts[len(parts)-1]
	switch {
	case len(parts) == 2 && kind.Namespaced():
		e.Namespace = parts[0]
		if err := checkName("namespace", e.Namespace, true); err != nil {
			return End{}, err
		}
	case len(parts) > 1:
		return End{}, fmt.Errorf("has too many parts; want %s", kind.form())
	}
	if err := checkName("name", e.Name, kind != VM && kind != NetNS && kind != Internet); err != nil {
		return End{}, fmt.Errorf("%w; want %s", err, kind.form())
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
	var forms []string
	for i := range kinds {
		forms = append(forms, kinds[i].form)
	}
	last := len(forms) - 1
	return End{}, fmt.Errorf("neither an address nor a named end; want %s or %s", strings.Join(forms[:last], ", "), forms[last])
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

// String returns the end as Parse reads it.
func (e End) String() string {
	s := string(e.Kind)
	switch {
	case e.Kind == Address && e.Port != 0:
		return netip.AddrPortFrom(e.Address, e.Port).String()
	case e.Kind == Address:
		return e.Address.String()
	case e.Kind == DNSName, e.Kind == HostName:
		return e.Name + e.port()
	case e.Namespace != "":
		s += "/" + e.Namespace
	}
	if e.Name != "" {
		s += "/" + e.Name
	}
	return s + e.port()
}

// port returns ":80", ":http" or "".
func (e End) port() string {
	switch {
	case e.PortName != "":
		return ":" + e.PortName
	case e.Port != 0:
		return ":" + strconv.Itoa(int(e.Port))
	}
	return ""
}

// withPort returns how the end is written with a port.
func (e End) withPort() string {
	if e.Kind == Address && e.Address.Is6() {
		return "[" + e.String() + "]:PORT"
	}
	return e.String() + ":PORT"
}
