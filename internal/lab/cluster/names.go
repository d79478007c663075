package cluster

import (
	"fmt"
	"hash/fnv"
	"math/rand"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// Node is one node that the pools ask for.
type Node struct {
	Name   string // aks-<pool>-<cluster's number>-<index>, which is its host name too
	NIC    string // the name of its network interface in Azure: aks-<pool>-<cluster's number>-nic-<index>
	Pool   string
	Index  int          // in its pool, from 0
	VMSize string       //
	VNet   string       //
	Subnet netip.Prefix // of its NIC
	// Address is the node's own, the NIC's primary IP configuration.
	Address netip.Addr
	// PodAddresses are the NIC's other IP configurations, in a row after Address: maxPods of them with plugin azure, none with mode overlay
	// and other plugins.
	PodAddresses []netip.Addr
	MaxPods      int
	Zone         string // of availability; empty for none
	Runtime      Runtime
	Mode         PoolMode
	Labels       map[string]string
	Taints       []string
}

// reservedFirst is how many addresses at the start of a subnet Azure keeps (network, gateway, two for DNS); reserved counts the last one
// (broadcast) too. Source: Azure's documentation of virtual networks, "Are there any restrictions on using IP addresses".
const (
	reservedFirst = 4
	reserved      = reservedFirst + 1
)

// Nodes gives the nodes of all pools in order with the addresses that Azure hands out, from the subnet's fifth address on: a row of
// 1 + maxPods each where pods have addresses of the subnet, else one each. In a running cluster the nodes that are there stay where they are. The cluster must
// have passed Validate.
func (c *Cluster) Nodes() []Node {
	var nodes []Node
	id := c.ID()
	for _, r := range c.layout() {
		p := c.Spec.NodePools[r.pool]
		addrs := make([]netip.Addr, c.addressesPerNode(p))
		for k := range addrs {
			addrs[k] = after(r.first, k)
		}
		nodes = append(nodes, newNode(p, id, r.index, r.vnet, r.subnet, addrs))
	}
	return nodes
}

func newNode(p NodePool, id string, index int, vnet string, s Subnet, addrs []netip.Addr) Node {
	zone := ""
	if zones := p.AvailabilityZones; len(zones) > 0 {
		zone = zones[index%len(zones)]
	}
	return Node{
		Name: fmt.Sprintf("aks-%s-%s-%d", p.Name, id, index), NIC: fmt.Sprintf("aks-%s-%s-nic-%d", p.Name, id, index),
		Pool: p.Name, Index: index, VMSize: p.VMSize, VNet: vnet, Subnet: s.Prefix, Address: addrs[0], PodAddresses: addrs[1:],
		MaxPods: p.MaxPods, Zone: zone, Runtime: p.Runtime, Mode: p.Mode, Labels: p.NodeLabels, Taints: p.NodeTaints,
	}
}

// NodeOf gives the node that a machine of the running cluster is, also one past its pool's count; ok is false for any other machine.
func (c *Cluster) NodeOf(machine string) (node Node, ok bool) {
	addrs := c.placed[machine]
	for _, p := range c.Spec.NodePools {
		rest, named := strings.CutPrefix(machine, fmt.Sprintf("aks-%s-%s-", p.Name, c.ID()))
		index, err := strconv.Atoi(rest)
		vnet, s, found := c.findSubnet(p.VNetSubnet)
		if named && err == nil && found && len(addrs) > 0 {
			return newNode(p, c.ID(), index, vnet.Name, s, addrs), true
		}
	}
	return Node{}, false
}

// ID returns the number in the names of the cluster's nodes. It comes out as AKS's does: eight digits of a random number seeded with the
// FNV-1a hash of the cluster's DNS prefix (aks-engine, pkg/api/types.go, GetClusterID); the DNS prefix is the one that "az aks create"
// makes up. The default cluster's is 31351229, as in the Part 1 article.
func (c *Cluster) ID() string {
	h := fnv.New64a()
	h.Write([]byte(c.DNSPrefix()))
	return fmt.Sprintf("%08d", rand.New(rand.NewSource(int64(h.Sum64()))).Uint32())[:8]
}

var (
	notAlphanumeric  = regexp.MustCompile(`[^A-Za-z0-9-]`)
	startsWithLetter = regexp.MustCompile(`^[A-Za-z]`)
)

// DNSPrefix returns what "az aks create" makes up: "<name>-<group>-<subscription>", cut to 10, 16 and 6 characters (azure-cli,
// acs/custom.py, _get_default_dns_prefix).
func (c *Cluster) DNSPrefix() string {
	name := notAlphanumeric.ReplaceAllString(c.Metadata.Name, "")
	if !startsWithLetter.MatchString(name) {
		name = "a" + name
	}
	group := notAlphanumeric.ReplaceAllString(c.Spec.Azure.ResourceGroup, "")
	return cut(name, 10) + "-" + cut(group, 16) + "-" + cut(c.Spec.Azure.Subscription, 6)
}

// NodeResourceGroup returns the group that AKS makes for the cluster's own resources: MC_<group>_<cluster>_<location>, at most 80
// characters.
func (c *Cluster) NodeResourceGroup() string {
	return cut("MC_"+c.Spec.Azure.ResourceGroup+"_"+c.Metadata.Name+"_"+c.Spec.Azure.Location, 80)
}

// NodePodBits is the length of the part of PodCIDR that a node gets (kube-controller-manager's --node-cidr-mask-size).
const NodePodBits = 24

// PodRouteTable returns the name of the route table that has a route to each node's pods, and the subnet of the nodes, with plugin kubenet,
// and with none that asks for routes: the one that the subnet names, as with a cluster in a subnet of one's own, or one that is made, under
// AKS's name for it. ok is false for other clusters.
func (c *Cluster) PodRouteTable() (table, subnet string, ok bool) {
	if c.Spec.Network.Plugin != PluginKubenet && !c.Spec.Network.Routes {
		return "", "", false
	}
	for _, p := range c.Spec.NodePools {
		if _, s, ok := c.findSubnet(p.VNetSubnet); ok {
			if s.RouteTable != "" {
				return s.RouteTable, p.VNetSubnet, true
			}
			return "aks-agentpool-" + c.ID() + "-routetable", p.VNetSubnet, true
		}
	}
	return "", "", false
}

// NodeSecurityGroup returns the name of the network security group that AKS makes for its nodes' NICs.
func (c *Cluster) NodeSecurityGroup() string { return "aks-agentpool-" + c.ID() + "-nsg" }

// PodRange returns the range of pods for the service proxy (its clusterCIDR): the nodes' subnet where pods have its addresses, else PodCIDR.
// With plugin none it need not be valid, because then only the user's plugin knows the range.
func (c *Cluster) PodRange() netip.Prefix {
	if c.Spec.Network.HasNodeAddressesOnly() {
		return c.Spec.Network.PodCIDR
	}
	for _, p := range c.Spec.NodePools {
		if _, s, ok := c.findSubnet(p.VNetSubnet); ok {
			return s.Prefix
		}
	}
	return netip.Prefix{}
}

// VMPublicIP returns the public address of the named VM; ok is false for a VM without one, or an unknown name.
func (c *Cluster) VMPublicIP(name string) (addr netip.Addr, ok bool) {
	addr = firstVMPublicIP
	for _, vm := range c.Spec.Azure.VMs {
		if vm.PublicIP && vm.Name == name {
			return addr, true
		}
		if vm.PublicIP {
			addr = addr.Next()
		}
	}
	return netip.Addr{}, false
}

// Frontends returns the public addresses that services of type LoadBalancer get, in the order in which they are handed out.
func (c *Cluster) Frontends() []netip.Addr {
	if f := c.Spec.LoadBalancer.Frontends; len(f) > 0 {
		return f
	}
	var all []netip.Addr
	for a := firstFrontend; a.Compare(lastFrontend) <= 0; a = a.Next() {
		all = append(all, a)
	}
	return all
}

// FindSubnet gives the VNet and subnet that "vnet/subnet" names.
func (c *Cluster) FindSubnet(ref string) (VNet, Subnet, error) {
	v, s, ok := c.findSubnet(ref)
	if !ok {
		return VNet{}, Subnet{}, fmt.Errorf("no subnet %q in spec.azure.vnets", ref)
	}
	return v, s, nil
}

func (c *Cluster) findSubnet(ref string) (VNet, Subnet, bool) {
	for _, at := range c.subnets() {
		if at.ref() == ref {
			return at.vnet, at.Subnet, true
		}
	}
	return VNet{}, Subnet{}, false
}

// placedSubnet is a subnet in its VNet, and its path in a cluster.yaml.
type placedSubnet struct {
	path string
	vnet VNet
	Subnet
}

func (s placedSubnet) ref() string { return s.vnet.Name + "/" + s.Name }

func (c *Cluster) subnets() (all []placedSubnet) {
	for i, v := range c.Spec.Azure.VNets {
		for j, s := range v.Subnets {
			all = append(all, placedSubnet{fmt.Sprintf("spec.azure.vnets[%d].subnets[%d]", i, j), v, s})
		}
	}
	return all
}

// setVMAddresses gives each VM without an address the one that it has, or the first free one of its subnet, as Azure's dynamic allocation
// does.
func (c *Cluster) setVMAddresses() {
	for i := range c.Spec.Azure.VMs {
		vm := &c.Spec.Azure.VMs[i]
		_, s, ok := c.findSubnet(vm.Subnet)
		if at := c.placed[vm.Name]; ok && !vm.Address.IsValid() && len(at) == 1 && s.Prefix.Contains(at[0]) {
			vm.Address = at[0]
		}
	}
	taken := map[netip.Addr]bool{}
	for _, vm := range c.Spec.Azure.VMs {
		taken[vm.Address] = true
	}
	for _, addrs := range c.placed {
		for _, a := range addrs {
			taken[a] = true
		}
	}
	rows := c.nodeRows()
	for i := range c.Spec.Azure.VMs {
		vm := &c.Spec.Azure.VMs[i]
		_, s, ok := c.findSubnet(vm.Subnet)
		if vm.Address.IsValid() || !ok || !s.Prefix.Addr().Is4() {
			continue
		}
		for a := nth(s.Prefix.Masked(), reservedFirst); a.Compare(last(s.Prefix)) < 0; a = a.Next() {
			if !taken[a] && !inRows(rows, a) {
				vm.Address, taken[a] = a, true
				break
			}
		}
	}
}

// cut returns at most n bytes of s.
func cut(s string, n int) string { return s[:min(n, len(s))] }
