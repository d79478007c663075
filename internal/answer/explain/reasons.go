package explain

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// role is what a chain of the service proxy is for.
type role string

// The roles, of kube-proxy's chains in iptables and nftables alike.
const (
	noRole       role = ""
	clusterRole  role = "cluster"  // to all endpoints
	localRole    role = "local"    // to the node's own endpoints
	externalRole role = "external" // what comes from outside
	endpointRole role = "endpoint"
	markRole     role = "mark" // marks for masquerade
	dropRole     role = "mark for drop"
)

// chainRoles are kube-proxy's prefixes and names (pkg/proxy/iptables/proxier.go, pkg/proxy/nftables/proxier.go), of all ages.
var chainRoles = []struct {
	prefix string
	role   role
}{
	{"KUBE-SVC-", clusterRole}, {"KUBE-SVL-", localRole}, {"KUBE-XLB-", localRole}, {"KUBE-EXT-", externalRole}, {"KUBE-FW-", externalRole},
	{"KUBE-SEP-", endpointRole}, {"KUBE-MARK-MASQ", markRole}, {"KUBE-MARK-DROP", dropRole},
	{"service-", clusterRole}, {"local-", localRole}, {"external-", externalRole}, {"firewall-", externalRole}, {"endpoint-", endpointRole},
	{"mark-for-masquerade", markRole},
}

// chainRole tells a chain's role; prefix is the part of its name that stands for the role.
func chainRole(c *netfilter.Chain) (r role, prefix string) {
	if c == nil {
		return noRole, ""
	}
	kube := c.Table != nil && strings.HasPrefix(c.Table.Name, "kube-proxy")
	for _, k := range chainRoles {
		if strings.HasPrefix(c.Name, k.prefix) && (kube || strings.HasPrefix(k.prefix, "KUBE-")) {
			return k.role, k.prefix
		}
	}
	return noRole, ""
}

var (
	portNamed     = regexp.MustCompile(`^([a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*(?::[a-z0-9-]*)?)(.*)$`)
	inWords       = regexp.MustCompile(`([a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*(?::[a-z0-9-]+)?)`)
	nftPort       = regexp.MustCompile(`^[a-z]+-[A-Z0-9]{8}-([^/]+/[^/]+)/[a-z]+/([^_/]*)(?:__(.+)/([0-9]+))?$`)
	toDestination = regexp.MustCompile(`--to-destination (\S+)`)
)

// reasoner gives rules their reasons. It learns which service a chain belongs to from the objects, from comments, or from who jumps there.
type reasoner struct {
	owners *Owners
	called map[*netfilter.Chain]*netfilter.Visit // the last jump to a chain
}

func newReasoner(o *Owners) *reasoner {
	return &reasoner{owners: o, called: map[*netfilter.Chain]*netfilter.Visit{}}
}

// remember keeps a jump.
func (t *reasoner) remember(v *netfilter.Visit) {
	if v.Verdict.Chain != nil {
		t.called[v.Verdict.Chain] = v
	}
}

// port tells which service port, or endpoint, a chain stands for.
func (t *reasoner) port(c *netfilter.Chain, below ...*netfilter.Chain) (servicePort, bool) {
	r, _ := chainRole(c)
	if r == noRole || r == markRole || r == dropRole {
		return servicePort{}, false
	}
	if p, ok := t.owners.hashedChain(c.Name); ok {
		return p, true
	}
	if m := nftPort.FindStringSubmatch(c.Name); m != nil {
		p := servicePort{name: m[1]}
		if m[2] != "" {
			p.name += ":" + m[2]
		}
		if a, err := netip.ParseAddr(strings.ReplaceAll(m[3], ".", ":")); err == nil && strings.Count(m[3], ".") > 3 {
			p.endpoint = netip.AddrPortFrom(a, portNumber(m[4]))
		} else if a, err := netip.ParseAddr(m[3]); err == nil {
			p.endpoint = netip.AddrPortFrom(a, portNumber(m[4]))
		}
		return p, true
	}
	name := t.portName(c, below)
	return servicePort{name: name, endpoint: endpointOf(c)}, name != ""
}

// portName finds a service port's name in the comments of its chain, of the rule that jumped there, or further up; "" where there is none.
// The chains below are those that the search has come from: jumps can go round.
func (t *reasoner) portName(c *netfilter.Chain, below []*netfilter.Chain) string {
	for i := range c.Rules {
		if m := inWords.FindStringSubmatch(comment(&c.Rules[i])); m != nil {
			return strings.TrimSuffix(m[1], ":")
		}
	}
	v := t.called[c]
	if v == nil || v.Chain == c || slices.Contains(below, v.Chain) {
		return ""
	}
	if m := portNamed.FindStringSubmatch(comment(v.Rule)); m != nil {
		return strings.TrimSuffix(m[1], ":")
	}
	if p, ok := t.port(v.Chain, append(below, c)...); ok {
		return p.name
	}
	return ""
}

// endpointOf is where an endpoint's chain translates to; zero for other chains.
func endpointOf(c *netfilter.Chain) netip.AddrPort {
	for i := range c.Rules {
		if m := toDestination.FindStringSubmatch(c.Rules[i].Text); m != nil {
			a, _ := netip.ParseAddrPort(m[1])
			return a
		}
	}
	return netip.AddrPort{}
}

// why tells why a rule is there, or what it stands for; "" where nobody knows. p is the packet as the rule left it.
func (t *reasoner) why(v *netfilter.Visit, p *packet.Packet) string {
	if v.Rule == nil {
		return azurePolicy(v)
	}
	switch r, _ := chainRole(v.Chain); r {
	case externalRole, localRole:
		return t.external(v, r)
	case clusterRole:
		return t.cluster(v)
	case endpointRole:
		return t.endpoint(v, p)
	}
	if w := t.agents(v, p); w != "" {
		return w
	}
	if w := azure(v); w != "" {
		return w
	}
	return t.commented(v)
}

// commented is the comment of a rule in kube-proxy's dispatching chains made regular, or as it stands.
func (t *reasoner) commented(v *netfilter.Visit) string {
	text := comment(v.Rule)
	if !strings.HasPrefix(v.Chain.Name, "KUBE-") {
		return text
	}
	m := portNamed.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	name, rest := strings.TrimSuffix(m[1], ":"), strings.TrimSpace(strings.TrimPrefix(m[2], ":"))
	rest = strings.Replace(rest, "loadbalancer IP", "load balancer IP", 1)
	switch {
	case rest != "":
		return name + ": " + rest
	case v.Chain.Name == "KUBE-NODEPORTS":
		return name + ": node port"
	}
	return name
}

// external explains the rules for what comes from outside the cluster.
func (t *reasoner) external(v *netfilter.Visit, in role) string {
	p, ok := t.port(v.Chain)
	if !ok {
		return comment(v.Rule)
	}
	to, _ := chainRole(v.Verdict.Chain)
	policy := "externalTrafficPolicy Cluster"
	if in == localRole || to == localRole || p.service != nil && p.service.Local {
		policy = "externalTrafficPolicy Local"
	}
	switch {
	case to == endpointRole:
		return t.toEndpoint(v.Verdict.Chain, p)
	case to == dropRole:
		return p.name + ": no rule before took it"
	case strings.Contains(v.Rule.Text, "--src-type LOCAL") || strings.Contains(v.Rule.Text, "fib saddr type local"):
		return p.name + ", " + policy + ", from the node itself"
	case policy == "externalTrafficPolicy Local" && to == clusterRole:
		return p.name + ", " + policy + ", from a pod: as to the cluster IP"
	}
	return p.name + ", " + policy
}

func (t *reasoner) cluster(v *netfilter.Visit) string {
	p, ok := t.port(v.Chain)
	if !ok {
		return comment(v.Rule)
	}
	switch to, _ := chainRole(v.Verdict.Chain); to {
	case endpointRole:
		return t.toEndpoint(v.Verdict.Chain, p)
	case markRole:
		return p.name + ": cluster IP, from outside the pods' range"
	}
	return p.name
}

// toEndpoint names the endpoint that a chain leads to.
func (t *reasoner) toEndpoint(c *netfilter.Chain, of servicePort) string {
	p, ok := t.port(c)
	if !ok || !p.endpoint.IsValid() {
		return of.name + ": an endpoint"
	}
	if owner, ok := t.owners.Address(p.endpoint.Addr(), 0, 0); ok {
		return p.name + ": endpoint " + p.endpoint.String() + ", " + owner.String()
	}
	return p.name + ": endpoint " + p.endpoint.String()
}

func (t *reasoner) endpoint(v *netfilter.Visit, to *packet.Packet) string {
	p, ok := t.port(v.Chain)
	if !ok {
		return comment(v.Rule)
	}
	if r, _ := chainRole(v.Verdict.Chain); r == markRole {
		return p.name + ": an endpoint that reaches itself through its service"
	}
	if owner, ok := t.owners.Address(to.Destination, 0, 0); ok {
		return p.name + ": " + owner.String()
	}
	return p.name
}

var destination = regexp.MustCompile(`(?:^| )-d (\S+)`)

// agents explains the rules of those who write nat POSTROUTING beside the service proxy.
func (t *reasoner) agents(v *netfilter.Visit, p *packet.Packet) string {
	chain, text := v.Chain.Name, v.Rule.Text
	switch {
	case strings.HasPrefix(chain, "IP-MASQ-AGENT"):
		return t.owners.masqAgent(v, p)
	case strings.HasPrefix(comment(v.Rule), "kubenet:"):
		return "kubenet: SNAT for destinations outside " + notDestination(text)
	case strings.HasPrefix(chain, "cali-") || strings.HasPrefix(comment(v.Rule), "cali:"):
		return t.calico(v, p)
	case strings.HasPrefix(chain, "KUBE-DEDUP"):
		return "kubenet: one copy of what its promiscuous bridge sends twice"
	case strings.HasPrefix(chain, "DOCKER") || strings.Contains(text, "! -o docker0 -j MASQUERADE"):
		return "Docker: its containers' network"
	case strings.Contains(text, "--dst-range 168.63.129.16-168.63.129.16"):
		return "AKS node: destinations outside " + notDestination(text)
	case strings.HasPrefix(chain, "packetwalk") || v.Chain.Table != nil && strings.HasPrefix(v.Chain.Table.Name, "packetwalk"):
		return "packetwalk"
	case v.Chain.Table != nil && v.Chain.Table.Family == netfilter.Bridge:
		return ebtables(text)
	}
	return ""
}

// notDestination is the range of "! -d RANGE".
func notDestination(text string) string {
	if m := regexp.MustCompile(`! -d (\S+)`).FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return "the ranges that it names"
}

// endAddress is the address of an end as packet prints it.
func endAddress(s string) netip.Addr {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr()
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return a
	}
	if i := strings.LastIndexByte(s, ':'); i > 0 { // a port that is a span
		a, _ := netip.ParseAddr(strings.Trim(s[:i], "[]"))
		return a
	}
	return netip.Addr{}
}

// ebtables explains Azure CNI's rules of the bridge (azure-container-networking, network/ebtables).
func ebtables(text string) string {
	switch {
	case strings.Contains(text, "-j snat") && strings.Contains(text, "--to-src"):
		return "Azure CNI: frames leave with the NIC's own address"
	case strings.Contains(text, "-j dnat") && strings.Contains(strings.ToLower(text), "ff:ff:ff:ff:ff:ff"):
		return "Azure CNI: answers to ARP go to every pod"
	case strings.Contains(text, "-j dnat") && strings.Contains(text, "--ip-dst"):
		return "Azure CNI: frames for a pod go to its own address"
	case strings.Contains(text, "-j arpreply"):
		return "Azure CNI: the node answers ARP for itself and its pods"
	}
	return ""
}

// azure explains the rules of the lab's fabric (table ip azure, internal/azure/vnet): what Azure's host network does.
func azure(v *netfilter.Visit) string {
	if v.Chain.Table == nil || v.Chain.Table.Name != "azure" {
		return ""
	}
	name, text := v.Chain.Name, v.Rule.Text
	rule, isRule := strings.CutPrefix(name, "rule/")
	switch {
	case strings.HasPrefix(name, "nsg"):
		return azureSecurity(v)
	case isRule && v.Verdict.Kind == netfilter.Drop:
		return "Azure load balancer rule " + rule + ": no back end is up"
	case isRule:
		return "Azure load balancer rule " + rule
	case name == "lb" && strings.Contains(text, "direction original"):
		return "Azure load balancer: a flow keeps its back end"
	case name == "lb" && strings.Contains(text, "@nsg-out"):
		return "Azure: the network security groups of the sender"
	case name == "lb" && comment(v.Rule) != "":
		return "Azure: " + comment(v.Rule)
	case name == "lb":
		return "Azure load balancer"
	case name == "inside":
		return "Azure: inside virtual networks, tracked for network security groups"
	case name == "raw" || name == "untracked" || v.Verdict.Chain != nil && strings.HasPrefix(name, "hop/") || strings.HasPrefix(name, "routes/") || strings.HasPrefix(name, "vnet/"):
		return azureRoute(v)
	case name == "nat-pre" && strings.Contains(text, "@instance-in"), name == "nat-post" && strings.Contains(text, "@instance-out"):
		return "Azure: the machine's own public address"
	case name == "nat-pre":
		return "Azure load balancer"
	case strings.HasPrefix(name, "out-"):
		return "Azure outbound: the load balancer's front end, the member's block of ports"
	case name == "nat-post" && strings.Contains(text, "@default-out"):
		return "Azure default outbound access"
	case name == "nat-post" && strings.Contains(text, "@pool-"):
		return "Azure outbound: one of the load balancer's front ends"
	case name == "nat-post" && strings.Contains(text, "@used-up"):
		return "Azure outbound: no port is left for this destination"
	case name == "nat-post" && strings.Contains(text, "@spare"):
		return "Azure outbound: few ports are left, and among these is a free one"
	case name == "nat-post":
		return "Azure: nothing inside virtual networks is translated"
	}
	if c := comment(v.Rule); c != "" {
		return "Azure: " + c
	}
	return "Azure"
}

// azurePolicy explains what the fabric does with packets that none of its rules is for: in chain forward are those of new flows that the
// load balancer has not taken and that do not lead out.
func azurePolicy(v *netfilter.Visit) string {
	if v.Chain.Table == nil || v.Chain.Table.Name != "azure" || v.Chain.Name != "forward" || v.Verdict.Kind != netfilter.Drop {
		return ""
	}
	return "Azure: no machine has this address, and no rule of the load balancer is for it and this port"
}

// securityGroup is the network security group that a chain is of, "" for other chains.
func securityGroup(c *netfilter.Chain) string {
	if c == nil || c.Table == nil || c.Table.Name != "azure" {
		return ""
	}
	names, ok := strings.CutPrefix(c.Name, "nsg/")
	if !ok {
		return ""
	}
	group, _, _ := strings.Cut(names, "/")
	return group
}

// azureSecurity explains the rules of network security groups, which have their names and priorities as comments.
func azureSecurity(v *netfilter.Visit) string {
	group, rule := securityGroup(v.Chain), comment(v.Rule)
	switch {
	case group == "" && rule != "":
		return "Azure: " + rule
	case group == "":
		return "Azure: the network security groups of the receiver"
	case v.Verdict.Kind == netfilter.Return:
		return "NSG " + group + " rule " + rule + " allows"
	case v.Verdict.Kind == netfilter.Drop:
		return "NSG " + group + " rule " + rule + " denies"
	case rule != "":
		return "NSG " + group + " rule " + rule
	}
	return "NSG " + group
}

// azureRoute explains how a subnet's routes lead on: raw chooses them, routes/VNET[/TABLE] has them, vnet/VNET is where they lead.
func azureRoute(v *netfilter.Visit) string {
	if c := comment(v.Rule); c != "" {
		return "Azure: " + c
	}
	var to string
	if v.Verdict.Chain != nil {
		to = v.Verdict.Chain.Name
	}
	if names, ok := strings.CutPrefix(to, "routes/"); ok {
		vnet, table, with := strings.Cut(names, "/")
		if with {
			return "Azure: the routes of VNet " + vnet + " with route table " + table
		}
		return "Azure: the routes of VNet " + vnet
	}
	from, _, _ := strings.Cut(strings.TrimPrefix(v.Chain.Name, "routes/"), "/")
	vnet, isVNet := strings.CutPrefix(to, "vnet/")
	switch {
	case to == "inside":
		return "Azure: tracked, for the network security groups on its way"
	case to == "untracked":
		return "Azure: the network security groups on its way let all of this through"
	case isVNet && vnet == from:
		return "Azure: within VNet " + vnet
	case isVNet:
		return "Azure: by the peering of VNets " + from + " and " + vnet
	case strings.HasPrefix(to, "hop/"):
		return "Azure: a user-defined route to a virtual appliance"
	case to == "none" || to == "no-hop":
		return "Azure: the route leads nowhere"
	case strings.HasPrefix(v.Chain.Name, "vnet/"):
		return "Azure: the sender's own address"
	}
	return "Azure: a machine of a virtual network"
}

func portNumber(s string) uint16 {
	var n uint16
	for _, d := range s {
		n = n*10 + uint16(d-'0')
	}
	return n
}
