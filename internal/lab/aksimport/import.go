package aksimport

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/lab/cluster"
)

// maxNodes is the most nodes of a pool that are taken over: a lab is one machine.
const maxNodes = 3

// importer makes a cluster.yaml. What it could not take over stands in notes, with the path where it would be.
type importer struct {
	*armview.Resources
	aks   *armview.Cluster
	c     cluster.Cluster
	notes []note
	names map[string]string // of virtual networks in the result, by their ids
	home  string            // id of the nodes' virtual network
}

type note struct{ path, text string }

// maxNotes bounds the comments of a file.
const maxNotes = 1000

func (m *importer) note(path, format string, values ...any) {
	if len(m.notes) < maxNotes {
		m.notes = append(m.notes, note{path, fmt.Sprintf(format, values...)})
	}
}

// Cluster returns a cluster.yaml for the managed cluster of a name; with "" for the only one. Apps are the lab's built-in applications.
func Cluster(r *armview.Resources, name string, apps ...string) ([]byte, error) {
	aks, err := choose(r, name)
	if err != nil {
		return nil, err
	}
	m := &importer{Resources: r, aks: aks, names: map[string]string{}}
	m.header()
	if err := m.networks(); err != nil {
		return nil, err
	}
	m.profile()
	m.pools()
	m.balancer()
	m.nodeOptions()
	m.machines()
	m.securityGroups()
	m.routeTables()
	m.natGateways()
	m.addons()
	d := newDocument(&m.c)
	for _, n := range m.notes {
		d.comment(n.path, "%s", n.text)
	}
	return m.validated(d, apps)
}

// choose finds the cluster of a name.
func choose(r *armview.Resources, name string) (*armview.Cluster, error) {
	var found []*armview.Cluster
	var names []string
	for _, id := range slices.Sorted(maps.Keys(r.Clusters)) {
		c := r.Clusters[id]
		names = append(names, c.Name)
		if name == "" || strings.EqualFold(c.Name, name) {
			found = append(found, c)
		}
	}
	switch {
	case len(names) == 0:
		return nil, errors.New(`no managed cluster was read; run "az aks list -o json > aks.json"`)
	case len(found) == 0:
		return nil, fmt.Errorf("no managed cluster %q was read; there are: %s", name, strings.Join(names, ", "))
	case len(found) > 1:
		return nil, fmt.Errorf("several managed clusters were read; specify one with --cluster: %s", strings.Join(names, ", "))
	}
	return found[0], nil
}

// part returns the segment behind a word in an id, or "".
func part(id, word string) string {
	parts := strings.Split(id, "/")
	for i := 0; i+1 < len(parts); i++ {
		if strings.EqualFold(parts[i], word) {
			return parts[i+1]
		}
	}
	return ""
}

// last returns the last name in an id.
func last(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }

func (m *importer) header() {
	m.c.APIVersion, m.c.Kind, m.c.Metadata.Name = cluster.APIVersion, cluster.Kind, m.aks.Name
	a := &m.c.Spec.Azure
	a.Subscription, a.ResourceGroup = strings.ToLower(part(m.aks.ID, "subscriptions")), part(m.aks.ID, "resourceGroups")
	a.Location = strings.ToLower(strings.ReplaceAll(m.aks.Location, " ", ""))
	m.note("", "Written by \"packetwalk import\" from AKS cluster %s. Start it with \"packetwalk up -f FILE\".", m.aks.Name)
	m.note("", "Comments say what is different in a lab. Kubernetes objects are not in this file.")
	if v := m.aks.KubernetesVersion; v != "" && !strings.HasPrefix(v+".", cluster.SupportedKubernetes+".") {
		m.note("", "Kubernetes %s in Azure: the lab's control plane is %s.", v, cluster.SupportedKubernetes)
	}
}

// profile imports the cluster's network profile.
func (m *importer) profile() {
	p, n := &m.aks.NetworkProfile, &m.c.Spec.Network
	const path = "spec.network"
	n.Plugin = cluster.Plugin(strings.ToLower(cmp.Or(p.NetworkPlugin, string(cluster.PluginKubenet))))
	switch {
	case strings.EqualFold(p.NetworkPluginMode, string(cluster.ModeOverlay)):
		n.Plugin, n.Mode = cluster.PluginAzure, cluster.ModeOverlay
		n.PodCIDR = m.prefix(path, "podCidr", cmp.Or(p.PodCIDR, first(p.PodCIDRs)))
	case n.Plugin == cluster.PluginAzure:
		n.Mode = cluster.Mode(strings.ToLower(cmp.Or(p.NetworkMode, string(cluster.ModeTransparent))))
	default:
		n.PodCIDR = m.prefix(path, "podCidr", cmp.Or(p.PodCIDR, first(p.PodCIDRs)))
	}
	switch policy := strings.ToLower(p.NetworkPolicy); {
	case policy == "calico" && n.Plugin != cluster.PluginNone:
		n.Policy = cluster.PolicyCalico
	case policy != "" && policy != "none":
		m.note(path, "networkPolicy %s: the lab enforces no network policy here.", policy)
	}
	if d := strings.ToLower(p.NetworkDataplane); d != "" && d != "azure" {
		m.note(path, "networkDataplane %s: the lab's service proxy writes iptables rules.", d)
	}
	n.ServiceCIDR = m.prefix(path, "serviceCidr", cmp.Or(p.ServiceCIDR, first(p.ServiceCIDRs)))
	if a, err := netip.ParseAddr(p.DNSServiceIP); err == nil {
		n.DNSServiceIP = a
	}
	for _, s := range slices.Concat(p.PodCIDRs, p.ServiceCIDRs) {
		if strings.Contains(s, ":") {
			m.note(path, "%s: the lab has no IPv6.", s)
		}
	}
	switch mode := strings.ToLower(p.KubeProxyConfig.Mode); mode {
	case "", "iptables":
	case "nftables":
		m.c.Spec.ServiceProxy.Backend = cluster.BackendNFTables
	default:
		m.note(path, "kubeProxyConfig mode %s: the lab's service proxy writes iptables rules.", mode)
	}
}

func first(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// prefix reads a range; one that cannot be read is noted, and left to the default.
func (m *importer) prefix(path, field, text string) netip.Prefix {
	p, err := netip.ParsePrefix(text)
	if err != nil && text != "" {
		m.note(path, "%s %q is not an address range.", field, text)
	}
	return p
}

// balancer imports the load balancer, and how the cluster leaves by it.
func (m *importer) balancer() {
	p, lb := &m.aks.NetworkProfile, &m.c.Spec.LoadBalancer
	const path = "spec.loadBalancer"
	lb.SKU = cluster.SKU(strings.ToLower(cmp.Or(p.LoadBalancerSKU, string(cluster.SKUStandard))))
	profile := p.LoadBalancerProfile
	if kind, nat := m.outboundType(), p.NATGatewayProfile; kind != cluster.OutboundLoadBalancer {
		m.c.Spec.OutboundType = kind
		if kind == cluster.OutboundManagedNATGateway {
			m.c.Spec.NATGateway = cluster.NATGatewayProfile{IdleTimeoutMinutes: nat.IdleTimeoutInMinutes,
				ManagedIPs: max(nat.ManagedOutboundIPProfile.Count, len(nat.EffectiveOutboundIPs))}
		}
	} else if lb.SKU == cluster.SKUStandard {
		lb.Outbound = cluster.Outbound{ManagedIPs: max(profile.ManagedOutboundIPs.Count, len(profile.EffectiveOutboundIPs)),
			Ports: profile.AllocatedOutboundPorts, IdleTimeoutMinutes: profile.IdleTimeoutInMinutes}
	}
	if lb.SKU == cluster.SKUStandard && strings.EqualFold(profile.ClusterServiceLoadBalancerHealthProbeMode, string(cluster.ProbeShared)) {
		lb.ClusterServiceLoadBalancerHealthProbeMode = cluster.ProbeShared
	}
	var public []string
	for _, id := range slices.Sorted(maps.Keys(m.PublicIPs)) {
		if a := m.PublicIPs[id]; a.IPAddress != "" && strings.EqualFold(part(a.ID, "resourceGroups"), m.aks.NodeResourceGroup) {
			public = append(public, fmt.Sprintf("%s (%s)", a.IPAddress, a.Name))
		}
	}
	const most = 10
	if k := len(public) - most; k > 0 {
		public = append(public[:most], fmt.Sprintf("and %d more", k))
	}
	if len(public) > 0 {
		m.note(path, "Public addresses in Azure: %s. The lab has its own, of %s.", strings.Join(public, ", "), cluster.PublicPool)
	}
}

// outboundType returns how the cluster's nodes leave, in the lab's letter case.
func (m *importer) outboundType() cluster.OutboundType {
	text := m.aks.NetworkProfile.OutboundType
	for _, known := range []cluster.OutboundType{cluster.OutboundManagedNATGateway, cluster.OutboundUserAssignedNATGateway,
		cluster.OutboundUserDefinedRouting, cluster.OutboundNone, cluster.OutboundBlock} {
		if strings.EqualFold(text, string(known)) {
			return known
		}
	}
	if text != "" && !strings.EqualFold(text, string(cluster.OutboundLoadBalancer)) {
		m.note("spec", "outboundType %s: unknown to the lab, whose nodes leave by the load balancer.", text)
	}
	return cluster.OutboundLoadBalancer
}

// nodeOptions imports the options of the nodes' image. A lab has LocalDNS on all nodes or on none.
func (m *importer) nodeOptions() {
	const path = "spec.nodeOptions"
	o := &m.c.Spec.NodeOptions
	switch access := m.aks.NetworkProfile.PodLinkLocalAccess; {
	case strings.EqualFold(access, "None"):
		o.IMDSRestriction = true
	case access != "" && !strings.EqualFold(access, "IMDS"):
		m.note(path, "podLinkLocalAccess %s: unknown to the lab, whose pods reach the Instance Metadata Service.", access)
	}
	var with, without []string
	for i := range m.aks.AgentPools {
		p := &m.aks.AgentPools[i]
		switch {
		case strings.EqualFold(p.OSType, "Windows"):
		case !p.LocalDNSProfile.Enabled():
			without = append(without, p.Name)
			if strings.EqualFold(p.LocalDNSProfile.Mode, "Preferred") && p.LocalDNSProfile.State == "" {
				m.note(path, "Node pool %s: localDNSProfile has mode Preferred, and whether its nodes run LocalDNS is not in the files.", p.Name)
			}
		default:
			with = append(with, p.Name)
			if len(p.LocalDNSProfile.VnetDNSOverrides)+len(p.LocalDNSProfile.KubeDNSOverrides) > 0 {
				m.note(path, "Node pool %s: localDNSProfile has a configuration of your own; the lab's LocalDNS has AKS's defaults.", p.Name)
			}
		}
	}
	if o.LocalDNS = len(with) > 0; o.LocalDNS && len(without) > 0 {
		m.note(path, "LocalDNS is on for node pools %s only: in the lab it is on for all.", strings.Join(with, ", "))
	}
}

// pools imports the node pools.
func (m *importer) pools() {
	for i := range m.aks.AgentPools {
		p := &m.aks.AgentPools[i]
		switch {
		case strings.EqualFold(p.OSType, "Windows"):
			m.note("spec.nodePools", "Node pool %s: the lab has no Windows nodes.", p.Name)
			continue
		case p.Count < 1:
			m.note("spec.nodePools", "Node pool %s has no nodes.", p.Name)
			continue
		case len(m.c.Spec.NodePools) == cluster.MaxPools:
			m.note("spec.nodePools", "Node pool %s: a lab has at most %d.", p.Name, cluster.MaxPools)
			continue
		}
		path := fmt.Sprintf("spec.nodePools[%d]", len(m.c.Spec.NodePools))
		one := cluster.NodePool{Name: p.Name, Count: min(p.Count, maxNodes), MaxPods: p.MaxPods, VMSize: p.VMSize,
			AvailabilityZones: p.AvailabilityZones, VNetSubnet: m.subnetName(p.VNetSubnetID),
			EnableNodePublicIP: p.EnableNodePublicIP, NodeLabels: m.labels(path, p.NodeLabels), NodeTaints: p.NodeTaints}
		if strings.EqualFold(p.Mode, string(cluster.ModeUser)) {
			one.Mode = cluster.ModeUser
		}
		if one.Count < p.Count {
			m.note(path, "%d nodes in Azure.", p.Count)
		}
		if home := m.c.Spec.NodePools; len(home) > 0 && one.VNetSubnet != home[0].VNetSubnet && m.c.Spec.Network.Plugin == cluster.PluginKubenet {
			m.note(path, "vnetSubnetId %s: in the lab all node pools of a cluster with kubenet are in one subnet.", last(p.VNetSubnetID))
			one.VNetSubnet = home[0].VNetSubnet
		}
		if p.PodSubnetID != "" {
			m.note(path, "podSubnetId %s: in the lab pods have addresses of their node's subnet.", last(p.PodSubnetID))
		}
		m.fit(path, &one)
		m.c.Spec.NodePools = append(m.c.Spec.NodePools, one)
	}
}

// labels returns those whose names a path can have in brackets, as all names of labels in Kubernetes. Others are hostile.
func (m *importer) labels(path string, all map[string]string) map[string]string {
	kept := maps.Clone(all)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if strings.ContainsAny(name, "[]") {
			m.note(path, "Left out: nodeLabel %s=%s: %q is not a name of a label.", name, all[name], name)
			delete(kept, name)
		}
	}
	return kept
}

// fit makes a pool's nodes and pods fit into its subnet, where pods have addresses of it. Azure keeps five addresses of each.
func (m *importer) fit(path string, p *cluster.NodePool) {
	_, s, err := m.c.FindSubnet(p.VNetSubnet)
	if err != nil || m.c.Spec.Network.HasNodeAddressesOnly() || s.Prefix.Bits() < 8 {
		return
	}
	const kept, least, usual = 5, 10, 30
	free := 1<<(32-s.Prefix.Bits()) - kept
	for _, other := range m.c.Spec.NodePools {
		if other.VNetSubnet == p.VNetSubnet {
			free -= other.Count * (1 + cmp.Or(other.MaxPods, usual))
		}
	}
	if p.Count*(1+cmp.Or(p.MaxPods, usual)) <= free {
		return
	}
	count := max(1, min(p.Count, free/(1+least)))
	pods := max(least, min(free/count-1, cmp.Or(p.MaxPods, usual)))
	m.note(path, "%d nodes of %d pods do not fit into subnet %s, %s, together with their pods.", p.Count, p.MaxPods, p.VNetSubnet, s.Prefix)
	p.Count, p.MaxPods = count, pods
}

// addons imports the addons that a lab has, and notes those that it lacks.
func (m *importer) addons() {
	for _, name := range slices.Sorted(maps.Keys(m.aks.AddonProfiles)) {
		a := m.aks.AddonProfiles[name]
		switch {
		case !a.Enabled:
		case strings.EqualFold(name, "httpApplicationRouting"):
			m.c.Spec.Addons = append(m.c.Spec.Addons, cluster.AddonHTTPRouting)
		case strings.EqualFold(name, "aciConnectorLinux"):
			m.c.Spec.VirtualNode = cluster.VirtualNode{Enabled: true, Subnet: m.names[m.home] + "/" + a.Config["SubnetName"]}
		default:
			m.note("spec", "Addon %s: the lab does not have it.", name)
		}
	}
}

// parts of a cluster.yaml that are left out where the lab does not take them: what they are called, and the smallest ones first.
var optional = []*regexp.Regexp{
	regexp.MustCompile(`^spec\.azure\.networkSecurityGroups\[\d+\]\.rules\[\d+\]`),
	regexp.MustCompile(`^spec\.azure\.networkSecurityGroups\[\d+\]`),
	regexp.MustCompile(`^spec\.azure\.routeTables\[\d+\]\.routes\[\d+\]`),
	regexp.MustCompile(`^spec\.azure\.routeTables\[\d+\]`),
	regexp.MustCompile(`^spec\.azure\.natGateways\[\d+\]\.(publicIPs|idleTimeoutMinutes)`),
	regexp.MustCompile(`^spec\.azure\.natGateways\[\d+\]`),
	regexp.MustCompile(`^spec\.azure\.vms\[\d+\]\.(address|publicIP|networkSecurityGroup|firewall)`),
	regexp.MustCompile(`^spec\.azure\.vms\[\d+\]`),
	regexp.MustCompile(`^spec\.azure\.vnets\[\d+\]\.subnets\[\d+\]\.(routeTable|networkSecurityGroup|natGateway|defaultOutboundAccess)`),
	regexp.MustCompile(`^spec\.azure\.vnets\[\d+\]\.subnets\[\d+\]`),
	regexp.MustCompile(`^spec\.azure\.vnets\[\d+\]\.peerings\[\d+\]`),
	regexp.MustCompile(`^spec\.azure\.vnets\[\d+\]`),
	regexp.MustCompile(`^spec\.nodePools\[\d+\]\.(nodeTaints\[\d+\]|nodeLabels\[[^\]]*\])`),
	regexp.MustCompile(`^spec\.nodePools\[\d+\]\.(mode|count|maxPods|vmSize|availabilityZones|nodeTaints|nodeLabels|enableNodePublicIP)`),
	regexp.MustCompile(`^spec\.virtualNode`),
	regexp.MustCompile(`^spec\.(network|loadBalancer|serviceProxy|nodeOptions|natGateway)\.[a-zA-Z]+(\.[a-zA-Z]+)?`),
	regexp.MustCompile(`^spec\.(outboundType|natGateway)`),
	regexp.MustCompile(`^spec\.azure\.(subscription|resourceGroup|location)`),
	regexp.MustCompile(`^metadata\.name`),
}

// validated returns the document as a file that the lab takes. What it refuses is left out, and becomes a comment with the reason.
func (m *importer) validated(d *document, apps []string) ([]byte, error) {
	for {
		text, err := d.text()
		if err != nil {
			return nil, err
		}
		_, errs := cluster.Parse(nil, text, apps...)
		if len(errs) == 0 {
			return text, nil
		}
		if !leaveOut(d, errs) {
			return nil, fmt.Errorf("a lab cannot have this cluster: %w", errs)
		}
	}
}

// outbound is the path of the outbound type. What it lacks is an error of a node pool's subnet.
const outbound = "spec.outboundType"

var ofPoolSubnet = regexp.MustCompile(`^spec\.nodePools\[\d+\]\.vnetSubnet$`)

// leaveOut takes out the optional parts that errors are about, and reports whether there was one. Elements of lists go from the last to
// the first, so that paths stay right.
func leaveOut(d *document, errs cluster.Errors) bool {
	why := map[string]string{}
	for _, e := range errs {
		for _, o := range optional {
			if path := o.FindString(e.Path); path != "" && d.find(path) != nil {
				why[path] = cmp.Or(why[path], e.Message)
				break
			}
		}
		if ofPoolSubnet.MatchString(e.Path) && d.find(outbound) != nil {
			why[outbound] = cmp.Or(why[outbound], e.Message)
		}
	}
	paths := slices.SortedFunc(maps.Keys(why), func(a, b string) int { return -natural(a, b) })
	for _, path := range paths {
		what, name := field(path), d.name(path)
		if !d.remove(path) {
			continue // with what it was in
		}
		d.comment(parent(path), "Left out: %s %s: %s.", what, name, why[path])
	}
	return len(paths) > 0
}

// field returns what stands at a path: the field's name, or for an element of a list one of those that its name says.
func field(path string) string {
	parts := steps(path)
	last := parts[len(parts)-1]
	if strings.HasSuffix(path, "]") {
		return strings.TrimSuffix(parts[len(parts)-2], "s")
	}
	return last
}

// natural orders paths by their indices as numbers.
func natural(a, b string) int {
	x, y := step.FindAllString(a, -1), step.FindAllString(b, -1)
	for i := range min(len(x), len(y)) {
		if c := cmp.Or(cmp.Compare(len(x[i]), len(y[i])), cmp.Compare(x[i], y[i])); c != 0 {
			return c
		}
	}
	return len(x) - len(y)
}
