package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/node/service"
)

// TableName is the name of the table, in families ip and ip6.
const TableName = "packetwalk-services"

// TableNames has the names of all tables: also of the staging table, and of the staging table of older versions.
var TableNames = []string{TableName, stagingName, oldStagingName}

// Orphaned returns the sentence about a table of a host that no packetwalk-node keeps.
func Orphaned(host, family, table string) string {
	return fmt.Sprintf(`%s has the nftables table "%s %s", and no packetwalk-node runs there that keeps it: it may lead to endpoints that `+
		`no longer exist; run "packetwalk-node --cleanup --proxy-mode nftables" there, or install packetwalk-node again`, host, family, table)
}

// Names of the table that forwards while the first is rebuilt.
const (
	stagingName    = TableName + "-staging"
	oldStagingName = TableName + "-beside" // until 2026-11; removed where it is found
)

// matchKind says which fields of a packet select a service port.
type matchKind uint8

const (
	byAddress  matchKind = iota // by an address of the service, protocol and port
	byNodePort                  // by protocol and node port, at an address of the node
	matchKinds
)

var matchPrefix = [matchKinds]string{"", "node-port/"}

// Sets and maps that are always there.
const (
	setClusterIPs = "cluster-ips"     // addresses: what is for another of their ports is refused
	setHairpin    = "hairpin"         // address . address: an endpoint that reaches itself
	setNodeIPs    = "node-port-ips"   // where node ports answer, if not on all of the node's addresses
	setFirewalled = "firewalled"      // load balancers' addresses with source ranges
	setSources    = "allowed-sources" // and those ranges
)

// The sets and maps of each matchKind.
var (
	mapServices  = [matchKinds]string{"service-ips", "service-node-ports"} // → the chain that decides, for those that no fan's set has
	setRefused   = [matchKinds]string{"no-endpoint-ips", "no-endpoint-node-ports"}
	setDropped   = [matchKinds]string{"no-local-endpoint-ips", "no-local-endpoint-node-ports"} // none on this node, with policy Local
	mapEndpoints = [matchKinds][2]string{{"cluster-endpoints", "local-endpoints"},             // with a slot → endpoint
		{"node-port-cluster-endpoints", "node-port-local-endpoints"}}
	mapPolicies = [matchKinds][2]string{{"cluster-fan-outs", "local-fan-outs"}, // of externalTrafficPolicy Local → the chain of a fan-out
		{"node-port-cluster-fan-outs", "node-port-local-fan-outs"}}
)

// mapAffinity are the maps by which new flows to service ports with session affinity are remembered: a service port's name as the client
// wrote it, and the endpoint → the chain that does.
var mapAffinity = [matchKinds]string{"affinity-ips", "affinity-node-ports"}

// Chains that are always there.
const (
	chainRemember = "remember-clients"
	chainServices = "services"
	chainForward  = "filter-forward"
	chainMark     = "mark-for-masquerade"
	chainDecide   = "external/local" // of each matchKind: by who asks
)

// entryPath is how a packet came to a service port's chain.
type entryPath uint8

const (
	plain    entryPath = iota // nothing is to be done before
	internal                  // by the cluster IP
	external                  // by another address, with policy Cluster
	remember                  // to an endpoint: for the next time
)

var wayPrefix = [...]string{"", "internal/", "external/", "remember/"}

var policyName = [...]string{service.Cluster: "cluster", service.Local: "local"}

// bothPolicies is for endpoints that either may choose.
const bothPolicies = service.Local + 1

// fan names a chain that chooses one of several endpoints, or remembers which was chosen.
type fan struct {
	at     matchKind
	way    entryPath
	policy service.Policy
	of     int // how many endpoints
	// sticky names the service port for one with session affinity, whose clients stay for so many seconds.
	sticky   string
	seconds  int
	protocol service.Protocol // of it
}

// chain returns the chain's name. How many endpoints it chooses from never changes: what leads to it has as many.
func (f *fan) chain() string {
	end := fmt.Sprint(f.of)
	switch {
	case f.way == remember:
		end = f.sticky
	case f.sticky != "":
		end += "/" + f.sticky
	}
	policy := "both"
	if f.policy < bothPolicies {
		policy = policyName[f.policy]
	}
	return matchPrefix[f.at] + wayPrefix[f.way] + policy + "/" + end
}

// clients returns the name of the map of clients of a policy.
func (f *fan) clients(policy service.Policy) string {
	return fmt.Sprintf("affinity/%s/%d/%s", policyName[policy], f.seconds, f.sticky)
}

// isFanSet reports whether a set's name is that of a fan that service ports are led to by a set of the chain's name, which has their keys,
// and not by a verdict map: those by addresses without session affinity, which are the many. Whenever a verdict map gets an element that
// leads to a chain, the kernel looks at all elements of all of the table's verdict maps (nft_table_validate), which takes it milliseconds
// for some thousands. It does not for sets.
func isFanSet(name string) bool {
	return strings.HasPrefix(name, wayPrefix[internal]) || strings.HasPrefix(name, wayPrefix[external])
}

// fanOfSet returns the fan of a set's name; ok is false where it has another, whoever made the set.
func fanOfSet(name string) (f fan, ok bool) {
	for _, way := range []entryPath{internal, external} {
		for policy := range policyName {
			if of, found := strings.CutPrefix(name, wayPrefix[way]+policyName[policy]+"/"); found {
				f = fan{way: way, policy: service.Policy(policy)}
				f.of, _ = strconv.Atoi(of)
			}
		}
	}
	return f, f.of > 0 && f.chain() == name
}

func (f *fan) hasSet() bool { return f.at == byAddress && f.sticky == "" && isFanSet(f.chain()) }

// fewEndpoints is how many endpoints the largest fan-out chooses from whose chain is always there. Each costs: whenever a map gets an
// element, the kernel looks at all rules that look into it (nft_add_set_elem), some 15 ms a chain for 300,000.
const fewEndpoints = 8

// isLasting reports whether a fan's chain is there whether a service port wants it or not. Whenever a chain gets its first rule that looks
// into a map, the kernel looks at all of the map's elements (nf_tables_bind_set), 50 ms for 300,000: with these a change rarely makes a
// chain.
func (f *fan) isLasting() bool {
	return f.hasSet() && f.way == internal && f.policy == service.Cluster && f.of <= fewEndpoints
}

// choosesSticky tells that clients are looked for in the map of the fan's policy.
func (f *fan) choosesSticky() bool { return f.sticky != "" && f.way != remember }

// stickyName returns a service port's name as a part of names in the table.
func stickyName(p *service.Port) string {
	return p.Namespace + "/" + p.Service + "/" + p.Protocol.Lower() + "/" + p.Name.Port
}

// externalIPs returns the addresses beside the cluster IP, each once.
func externalIPs(p *service.Port) []netip.Addr {
	return slices.DeleteFunc(unique(p.ExternalIPs, p.LoadBalancerIPs), func(a netip.Addr) bool { return a == p.ClusterIP })
}

func unique(lists ...[]netip.Addr) []netip.Addr {
	all := slices.Concat(lists...)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

const whyUnallocated = "an unallocated cluster IP"
