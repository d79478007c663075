package cluster

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// MaxPoolNodes is the most nodes that a pool can have in the lab (spec.nodePools[].count).
const MaxPoolNodes = 100

// MaxPools is the most node pools of a lab (spec.nodePools).
const MaxPools = 10

// Bounds of a node pool's maxPods: AKS's own range for Azure CNI.
const (
	MinMaxPods = 10
	MaxMaxPods = 250
)

func (v *validator) pools() {
	c := v.c
	if len(c.Spec.NodePools) == 0 || len(c.Spec.NodePools) > MaxPools {
		v.errs.add("spec.nodePools", fmt.Sprintf("write 1 to %d pools, or leave the field out", MaxPools), "%d node pools", len(c.Spec.NodePools))
	}
	names := map[string]string{}
	for i, p := range c.Spec.NodePools {
		at := fmt.Sprintf("spec.nodePools[%d]", i)
		v.name(at+".name", p.Name, poolName, "1 to 12 lower-case letters and digits, a letter first")
		v.unique(at+".name", p.Name, names)
		v.checkRange(at+".count", p.Count, 1, MaxPoolNodes)
		v.checkRange(at+".maxPods", p.MaxPods, MinMaxPods, MaxMaxPods)
		v.name(at+".vmSize", p.VMSize, vmSize, "a size's name, such as Standard_B2ms")
		for j, zone := range p.AvailabilityZones {
			at := fmt.Sprintf("%s.availabilityZones[%d]", at, j)
			v.name(at, zone, zoneName, "1, 2 or 3")
			if first := slices.Index(p.AvailabilityZones[:j], zone); first >= 0 {
				v.errs.add(at, "remove it", "the same as availabilityZones[%d]", first)
			}
		}
		choice(v, at+".runtime", p.Runtime, RuntimeContainerd, RuntimeSimulated)
		if c.Spec.Network.Plugin == PluginNone && p.Runtime != RuntimeContainerd {
			v.errs.add(at+".runtime", "write containerd", "a %s node has no place for a CNI plugin of your own, as spec.network.plugin: none needs it",
				p.Runtime)
		}
		if p.Runtime == RuntimeSimulated && p.Mode != ModeUser {
			v.errs.add(at+".mode", "write User", "simulated nodes run no programs, and AKS's own pods need some")
		}
		choice(v, at+".mode", p.Mode, ModeSystem, ModeUser)
		v.nodeLabels(at+".nodeLabels", p.NodeLabels)
		v.nodeTaints(at+".nodeTaints", p.NodeTaints)
		v.subnetRef(at+".vnetSubnet", p.VNetSubnet, v.isForPools)
		v.poolSubnet(at+".vnetSubnet", p)
	}
	if pools := c.Spec.NodePools; len(pools) > 0 && !slices.ContainsFunc(pools, func(p NodePool) bool { return p.Mode != ModeUser }) {
		v.errs.add("spec.nodePools[0].mode", "write System for one pool, or leave it out", "all pools have mode User, and a cluster needs one of mode System")
	}
	v.capacity()
	v.podCapacity()
}

// isOpen reports whether machines can be in a subnet: one of container groups holds nothing else.
func (v *validator) isOpen(s placedSubnet) bool {
	return !v.c.Spec.VirtualNode.Enabled || s.ref() != v.c.Spec.VirtualNode.Subnet
}

// isForPools reports whether pools can be in a subnet, by where the first pool is.
func (v *validator) isForPools(s placedSubnet) bool {
	first := v.c.Spec.NodePools[0].VNetSubnet
	vnet, _, ok := v.c.findSubnet(first)
	n := v.c.Spec.Network
	oneSubnet := n.Plugin == PluginKubenet || n.Routes
	return v.isOpen(s) && (!ok || s.vnet.Name == vnet.Name && (!oneSubnet || s.ref() == first))
}

// poolSubnet checks that a pool is in the VNet, or the subnet, that the first one is in, where that has to be so.
func (v *validator) poolSubnet(path string, p NodePool) {
	first := v.c.Spec.NodePools[0].VNetSubnet
	vnet, _, ok := v.c.findSubnet(first)
	own, _, found := v.c.findSubnet(p.VNetSubnet)
	if !ok || !found || p.VNetSubnet == first {
		return
	}
	n := v.c.Spec.Network
	switch {
	case vnet.Name != own.Name:
		v.errs.add(path, "write a subnet of "+vnet.Name, "it is in VNet %s, and the first pool in %s: as in AKS all pools are in one VNet", own.Name, vnet.Name)
	case n.Plugin == PluginKubenet || n.Routes:
		v.errs.add(path, "write "+first, "the routes to pods are in the first pool's subnet")
	}
}

var (
	labelName   = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	labelPrefix = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

// maxLabelPrefix is the most characters of a label's prefix (Kubernetes, "Labels and Selectors").
const maxLabelPrefix = 253

// reservedLabels are the domains whose labels a kubelet may not give its own node (NodeRestriction), and AKS's.
var reservedLabels = []string{"kubernetes.io", "k8s.io", "kubernetes.azure.com"}

func (v *validator) nodeLabels(path string, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		v.label(fmt.Sprintf("%s[%s]", path, key), key, labels[key])
	}
}

// label checks a label, or the key and value of a taint.
func (v *validator) label(path, key, value string) {
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		prefix, name = "", key
	}
	switch {
	case !labelName.MatchString(name) || prefixed && (len(prefix) > maxLabelPrefix || !labelPrefix.MatchString(prefix)):
		v.errs.add(path, "write a name such as sku or example.org/sku", "%q is not a name of a label", key)
	case key == "agentpool" || slices.ContainsFunc(reservedLabels, func(d string) bool { return strings.HasSuffix("."+prefix, "."+d) }):
		v.errs.add(path, "write another name", "%q is reserved for Kubernetes and AKS", key)
	}
	if value != "" && !labelName.MatchString(value) {
		v.errs.add(path, "write at most 63 letters, digits, -, _ and ., a letter or digit at both ends", "%q is not a value of a label", value)
	}
}

// TaintEffects are the effects of a taint.
var TaintEffects = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}

// SplitTaint splits "key=value:effect", whose value may be left out.
func SplitTaint(taint string) (key, value, effect string) {
	pair, effect, _ := strings.Cut(taint, ":")
	key, value, _ = strings.Cut(pair, "=")
	return key, value, effect
}

func (v *validator) nodeTaints(path string, taints []string) {
	seen := map[string]int{}
	for i, t := range taints {
		at := fmt.Sprintf("%s[%d]", path, i)
		key, value, effect := SplitTaint(t)
		if !slices.Contains(TaintEffects, effect) {
			v.errs.add(at, "write it as sku=gpu:NoSchedule", "%q does not end with :%s", t, strings.Join(TaintEffects, ", :"))
		}
		v.label(at, key, value)
		if first, twice := seen[key+":"+effect]; twice {
			v.errs.add(at, "remove it", "nodeTaints[%d] has the same key and effect", first)
			continue
		}
		seen[key+":"+effect] = i
	}
}

// podCapacity checks that each node gets its part of the range of pods.
func (v *validator) podCapacity() {
	n := v.c.Spec.Network
	if !n.HasNodeAddressesOnly() || !usable(n.PodCIDR) || n.PodCIDR.Bits() > NodePodBits {
		return
	}
	nodes := 0
	for _, p := range v.c.countablePools() {
		nodes += p.Count
	}
	if most := 1 << (NodePodBits - n.PodCIDR.Bits()); nodes > most {
		v.errs.add("spec.network.podCIDR", fmt.Sprintf("write a range of /%d or shorter, or fewer nodes", NodePodBits-(32-lengthFor(nodes))),
			"%s has a /%d for each of %d nodes and there are %d", n.PodCIDR, NodePodBits, most, nodes)
	}
}

// capacity checks that each subnet holds its nodes, their pods and the addresses that Azure keeps.
func (v *validator) capacity() {
	c, used, full := v.c, map[string]int{}, map[string]bool{}
	pools := c.countablePools()
	for _, i := range slices.Sorted(maps.Keys(pools)) {
		p := pools[i]
		used[p.VNetSubnet] += p.Count * c.addressesPerNode(p)
		_, s, ok := c.findSubnet(p.VNetSubnet)
		need := used[p.VNetSubnet] + reserved
		if !ok || !usable(s.Prefix) || need <= size(s.Prefix) || full[p.VNetSubnet] {
			continue
		}
		full[p.VNetSubnet] = true
		v.errs.add(fmt.Sprintf("spec.nodePools[%d].count", i),
			fmt.Sprintf("give the subnet a prefix of /%d or shorter, or write fewer nodes or a smaller maxPods", lengthFor(need)),
			"subnet %s, %s, has %d addresses and %d are needed: %d of nodes and pods (nodes × (1 + maxPods)) and %d that Azure keeps",
			p.VNetSubnet, s.Prefix, size(s.Prefix), need, need-reserved, reserved)
	}
	v.rowsFit(full)
}

// rowsFit checks that each node finds its addresses in a row beside the machines that are there already, in subnets that are not full.
func (v *validator) rowsFit(full map[string]bool) {
	for _, r := range v.c.layout() {
		if p := v.c.Spec.NodePools[r.pool]; !r.fits && usable(r.subnet.Prefix) && !full[p.VNetSubnet] {
			full[p.VNetSubnet] = true
			v.errs.add(fmt.Sprintf("spec.nodePools[%d].count", r.pool), "write fewer nodes, or take away machines of that subnet first",
				"subnet %s, %s, has no %d free addresses in a row for node %d of pool %s beside what is there", p.VNetSubnet, r.subnet.Prefix,
				v.c.addressesPerNode(p), r.index, p.Name)
		}
	}
}
