package redact

import (
	"encoding/base32"
	"maps"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/syntax/iptables"
)

// nameMap replaces names by keyed hashes of them. It keeps public names: those of Kubernetes' own namespaces and services, and of the
// chains that its components always make. It also keeps the names of links that the distributions and network plugins always make, and the
// prefixes that tell what a thing is.
type nameMap struct {
	book       *attribution.Book // of who gives chains their names
	key        []byte
	links      map[string]bool // links that there are
	prefixes   map[string]bool // beginnings of links' names that rules speak of: "azv", "eth0."
	beginnings []string        // those and publicPrefixes, longest first
	originals  *Originals
	back       *restorer // set where replacements become originals again
}

func newNameMap(book *attribution.Book, key []byte) *nameMap {
	m := &nameMap{book: book, key: key, links: map[string]bool{}, prefixes: map[string]bool{}}
	m.originals = &Originals{names: map[string]string{}}
	m.sortPrefixes()
	return m
}

func wordSet(words string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// hash returns n characters (at most 51) that stand for a name of some kind.
func (m *nameMap) hash(kind, name string, n int) string {
	d := digest(m.key, kind, name)
	return lowerBase32.EncodeToString(d[:])[:n]
}

// publicNames are the names, by kind, that tell nothing.
var publicNames = map[string]map[string]bool{
	"ns":   wordSet("default kube-system kube-public kube-node-lease calico-system tigera-operator gatekeeper-system"),
	"svc":  wordSet("kubernetes kube-dns metrics-server"),
	"port": wordSet("http https dns dns-tcp metrics tcp udp web grpc"),
	"pool": wordSet("default-ipv4-ippool default-ipv6-ippool"),
	"node": wordSet(""),
}

// of gives the name that stands for a name of some kind: "ns", "svc", "pod", "node", …
func (m *nameMap) of(kind, name string) string {
	if m.back != nil {
		return m.back.name(name)
	}
	if name == "" || publicNames[kind][name] {
		return name
	}
	return m.originals.note(name, kind+"-"+m.hash(kind, name, 8))
}

// host replaces the name of a host.
func (m *nameMap) host(name string) string {
	kind, rest, ok := strings.Cut(name, "/")
	if !ok {
		return name // "fabric", "internet", "controlplane"
	}
	if kind == "pod" {
		namespace, pod, _ := strings.Cut(rest, "/")
		return "pod/" + m.of("ns", namespace) + "/" + m.of("pod", pod)
	}
	if strings.Trim(rest, "0123456789") == "" {
		return name // netns/INODE
	}
	if kind == "node" {
		return "node/" + m.of("node", rest)
	}
	return kind + "/" + m.of("host", rest)
}

// publicLinks are names of links that distributions and network plugins always give.
var publicLinks = regexp.MustCompile(`^(lo|docker0|cni0|cbr0|azure0|virbr0|tunl0|ip6tnl0|sit0|gre0|gretap0|erspan0|ip_vti0|ip6_vti0|ip6gre0|vxlan\.calico|flannel\.1|` +
	`kube-ipvs0|kube-bridge|nodelocaldns|cilium_(net|host|vxlan)|dummy0|(eth|ens|enp|eno|bond|wlan)[0-9]+(s[0-9]+)?(f[0-9]+)?([.][0-9]+)?)$`)

// publicPrefixes are how the names begin that network plugins make.
var publicPrefixes = []string{"azv", "veth", "cali", "lxc", "br-", "tap", "enP", "eth", "gke", "flannel", "cilium", "weave", "docker"}

func (m *nameMap) learnPrefix(p string) {
	if !m.prefixes[p] {
		m.prefixes[p] = true
		m.sortPrefixes()
	}
}

func (m *nameMap) sortPrefixes() {
	all := maps.Clone(m.prefixes)
	for _, p := range publicPrefixes {
		all[p] = true
	}
	m.beginnings = slices.SortedFunc(maps.Keys(all), func(a, b string) int { return len(b) - len(a) })
}

// maxLinkName is IFNAMSIZ less the zero byte.
const maxLinkName = 15

// link replaces the name of a link. It begins as the rules' wildcards want it.
func (m *nameMap) link(name string) string {
	if m.back != nil {
		return m.back.name(name)
	}
	if name == "" || publicLinks.MatchString(name) {
		return name
	}
	for _, p := range m.beginnings {
		if strings.HasPrefix(name, p) && name != p {
			begin := m.linkPrefix(p)
			return m.originals.note(name, begin+m.hash("link", name, max(1, min(8, maxLinkName-len(begin)))))
		}
	}
	return m.originals.note(name, "if"+m.hash("link", name, 8))
}

// linkPrefix replaces the beginning of links' names: one within another stays within.
func (m *nameMap) linkPrefix(p string) string {
	if slices.Contains(publicPrefixes, p) || publicLinks.MatchString(p) || publicLinks.MatchString(p+"0") {
		return p
	}
	if m.back != nil {
		return m.back.linkPrefix(p)
	}
	for _, q := range m.beginnings {
		if strings.HasPrefix(p, q) && p != q {
			return m.originals.note(p, m.linkPrefix(q)+m.hash("prefix", p, 2))
		}
	}
	return m.originals.note(p, "x"+m.hash("prefix", p, 2))
}

// isLink reports whether a word is the name of a link that there is. Of a redacted capture it is one that a redaction has replaced.
func (m *nameMap) isLink(s string) bool {
	if m.back != nil {
		return m.back.names[s] != ""
	}
	return m.links[s]
}

// publicTables are the tables of iptables and those that components make.
var publicTables = wordSet("filter nat mangle raw security broute kube-proxy kube-proxy-canary calico azure firewalld docker ip-masq-agent packetwalk")

func (m *nameMap) table(name string) string {
	if m.back != nil {
		return m.back.name(name)
	}
	if publicTables[name] {
		return name
	}
	return m.originals.note(name, "table-"+m.hash("table", name, 8))
}

// routingTable replaces the name that the machine gives to a routing table.
func (m *nameMap) routingTable(name string) string {
	if m.back != nil {
		return m.back.name(name)
	}
	switch {
	case isNumber(name), name == "main", name == "local", name == "default", name == "all":
		return name
	}
	return m.originals.note(name, "rt-"+m.hash("routing table", name, 6))
}

// hookNames are how chains of nft are called that hang at a hook.
var hookNames = wordSet("prerouting input forward output postrouting ingress egress")

// chain replaces the name of a chain: what its writer always calls it so stays, and tells the kind.
func (m *nameMap) chain(name string) string {
	if m.back != nil {
		return m.back.name(name)
	}
	if hookNames[name] || iptables.IsBuiltIn(name) || name == "BROUTING" { // which ebtables has, too
		return name
	}
	parts := m.book.Parts(name)
	if parts == nil {
		return m.originals.note(name, "chain-"+m.hash("chain", name, 12))
	}
	var out strings.Builder
	for _, p := range parts {
		out.WriteString(m.chainPart(p))
	}
	return m.originals.note(name, out.String())
}

func (m *nameMap) chainPart(p attribution.Part) string {
	switch {
	case !p.Free || p.Text == "":
		return p.Text
	case p.Word == "link":
		return m.link(p.Text)
	case p.Word == "service":
		return m.service(p.Text)
	case p.Word == "name":
		return m.of("port", p.Text)
	case strings.ToLower(p.Text) != p.Text && strings.ToUpper(p.Text) == p.Text:
		return strings.ToUpper(m.hash("chain", p.Text, max(8, min(16, len(p.Text)))))
	}
	return m.hash("chain", p.Text, 12)
}

// publicSet are the sets that Calico and kube-proxy always make (felix/ipsets; pkg/proxy/ipvs, pkg/proxy/nftables).
var publicSet = regexp.MustCompile(`^(cali[46]0(all-ipam-pools|network-ip-pools|masq-ipam-pools|dscp-src-net|all-hosts-net|this-host|all-tunnel-net|all-vxlan-net)|KUBE(-[0-9A-Z]+)+|` +
	`cluster-ips|nodeport-ips|service-ips|service-nodeports|no-endpoint-services|no-endpoint-nodeports|firewall-ips)$`)

// set replaces the name of a set, of ipset or of nft.
func (m *nameMap) set(name string) string {
	if m.back != nil {
		return m.back.name(name)
	}
	if publicSet.MatchString(name) {
		return name
	}
	kind := ""
	if strings.HasPrefix(name, "cali4") || strings.HasPrefix(name, "cali6") {
		kind = name[:5]
	}
	return m.originals.note(name, kind+"set-"+m.hash("set", name, 10))
}

// publicProcesses are programs that every node has.
var publicProcesses = wordSet(`kubelet kube-proxy containerd containerd-shim dockerd sshd systemd systemd-resolve systemd-network chronyd chronyc rpcbind
	coredns calico-node packetwalk packetwalk-node packetwalk-app packetwalk-cont`)

func (m *nameMap) process(name string) string {
	if m.back != nil {
		return m.back.name(name)
	}
	if name == "" || publicProcesses[name] {
		return name
	}
	return m.originals.note(name, "proc-"+m.hash("process", name, 6))
}

// free replaces a text of a person's own, unless it is a number.
func (m *nameMap) free(s string) string {
	if strings.Trim(s, "0123456789") == "" {
		return s
	}
	return m.text(s)
}

// text replaces a text of a person's own.
func (m *nameMap) text(s string) string {
	if m.back != nil {
		return m.back.name(s)
	}
	if s == "" {
		return s
	}
	return m.originals.note(s, "text-"+m.hash("text", s, 8))
}

// service replaces NAMESPACE/NAME[:PORT] of a comment, where NAME may be Calico's for a NetworkPolicy; "" says that it is none.
func (m *nameMap) service(s string) string {
	namespace, rest, ok := strings.Cut(s, "/")
	if !ok || namespace == "" || rest == "" || strings.ContainsAny(rest, "/") {
		return ""
	}
	if policy, ok := strings.CutPrefix(rest, "knp.default."); ok {
		return m.of("ns", namespace) + "/knp.default." + m.of("netpol", policy)
	}
	name, port, hasPort := strings.Cut(rest, ":")
	out := m.of("ns", namespace) + "/" + m.of("svc", name)
	if hasPort {
		out += ":" + m.of("port", port)
	}
	return out
}

// knownWords are the words of the comments that kube-proxy, kubelet, the ip-masq-agent, Calico, Azure's agents and Docker write. Those that
// our own writers have, too, TestWriters holds against them, as it does the names of sets and counters above and below.
var knownWords = wordSet(`kubernetes service services portals portal externally-visible externally visible nodeports nodeport node port ports note this must be the last
	rule in chain forwarding rules conntrack pod source destination lb loadbalancer load balancer ip ips cluster external firewall route via for to from
	requiring snat mark masquerade marked packets packet traffic block blocking dropping drop incoming connections connection localnet localhost
	masquerading hairpin hairpinned health check redirect has no endpoints endpoint local only locally hosted off off-cluster and not of by on is are a an at all any
	ip-masq-agent ensure nat postrouting directs non-local outbound to our custom ip-masq-agent chain subject must-be-last should apply after
	must-be-first default network policy profile accepted accept return host hosts workload workloads workloadendpoint endpoint's unknown interfaces interface
	configured failsafe docker user azure cni swift svc pools pool addr-type cidr's cidrs cidr addrtype source-nat reject rejecting with ct state new established related
	invalid valid untracked 169.254.169.254 metadata server wireserver wire dns proxy tcp udp sctp icmp ->
	jump set comment rewritten destinations nodeport kubenet cluster-local match matches come redirect pods trying reach vip clusterip other will
	dropped if internet holds routed prefixes or later does same that
	start end tier policies passed profiles matched ingress egress explicitly encapped originating vxlan ipinip ipip ipv4 ipv6 calico non-calico allow allowed
	non-allowed defaultendpointtohostaction verdict dscp leaving skip whep forward forwarded workload`)

// publicCounters are the nfacct objects of kube-proxy (pkg/proxy/metrics).
var publicCounters = wordSet("ct_state_invalid_dropped_pkts localhost_nps_accepted_pkts")
