package cloud

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	servicecontroller "k8s.io/cloud-provider/controllers/service"

	"packetwalk.dev/internal/azure/vnet"
)

// LoadBalancerName is the name of the load balancer, and of its back-end pool, that all Services share: the cluster's, which is
// this in AKS whatever the resource is called.
const LoadBalancerName = "kubernetes"

// InternalName is the name of the load balancer of Services that ask for private addresses.
const InternalName = LoadBalancerName + "-internal"

// annotationInternal asks for an internal load balancer (cloud-provider-azure, pkg/consts).
const annotationInternal = "service.beta.kubernetes.io/azure-load-balancer-internal"

// annotationIdle says for how many minutes a flow may be idle; 4 without it. The bounds are cloud-provider-azure's (getIdleTimeout).
const (
	annotationIdle                = "service.beta.kubernetes.io/azure-load-balancer-tcp-idle-timeout"
	minIdle, defaultIdle, maxIdle = 4, 4, 30
)

func idleTimeout(s *v1.Service) (int, error) {
	text, ok := s.Annotations[annotationIdle]
	if !ok {
		return defaultIdle, nil
	}
	minutes, err := strconv.Atoi(text)
	if err != nil || minutes < minIdle || minutes > maxIdle {
		return 0, fmt.Errorf("annotation %s: %q is not a whole number of minutes from %d to %d", annotationIdle, text, minIdle, maxIdle)
	}
	return minutes, nil
}

// Network is what the provider needs of the fabric.
type Network interface {
	// Update changes the network, all or nothing.
	Update(func(*vnet.Network) error) error
	Snapshot() (vnet.Network, vnet.Health)
}

// balancer implements k8s.io/cloud-provider's LoadBalancer.
type balancer struct {
	network Network
	// nodes are the nodes as they are now; nil for those that the controller hands over. Those can be old: the controller
	// works on several Services at once, which share one pool here, and the last call must not bring an older list back.
	nodes corelisters.NodeLister
	// securityGroup is the nodes' network security group, "" for none.
	securityGroup string
	faults        *Faults // by Service, "namespace/name"; may be nil
}

// members names the nodes that belong into the pool now. It is called while the network is being changed.
func (b balancer) members(given []*v1.Node) []string {
	nodes := given
	if b.nodes != nil {
		if now, err := b.nodes.List(labels.Everything()); err == nil {
			nodes = now
		}
	}
	var all []string
	for _, n := range nodes {
		if !excluded(n) {
			all = append(all, n.Name)
		}
	}
	return all
}

// excluded reports whether a node is kept out of load balancers, as the service controller decides it: by the label, by the cluster
// autoscaler's taint, or because it is being deleted.
func excluded(n *v1.Node) bool {
	_, label := n.Labels[v1.LabelNodeExcludeBalancers]
	taint := slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == servicecontroller.ToBeDeletedTaint })
	return label || taint || n.DeletionTimestamp != nil
}

// GetLoadBalancerName returns the Service's name in Azure: of its front end, and the beginning of its rules' and probes'.
func (b balancer) GetLoadBalancerName(_ context.Context, _ string, s *v1.Service) string {
	return cloudprovider.DefaultLoadBalancerName(s)
}

// GetLoadBalancer reports whether the Service has a front end, and its address.
func (b balancer) GetLoadBalancer(_ context.Context, _ string, s *v1.Service) (*v1.LoadBalancerStatus, bool, error) {
	n, _ := b.network.Snapshot()
	for i := range n.LoadBalancers {
		if f, ok := frontend(&n.LoadBalancers[i], cloudprovider.DefaultLoadBalancerName(s)); ok {
			return status(f.Address), true, nil
		}
	}
	return nil, false, nil
}

// EnsureLoadBalancer gives the Service its front end, rules and probes, the nodes their place in the back-end pool, and their security
// group the rules that let the Service's clients in.
func (b balancer) EnsureLoadBalancer(_ context.Context, _ string, s *v1.Service, nodes []*v1.Node) (*v1.LoadBalancerStatus, error) {
	want, err := want(s)
	if err != nil {
		return nil, b.faults.note(objectOf(s), err)
	}
	var address netip.Addr
	err = b.network.Update(func(n *vnet.Network) (err error) {
		address, err = ensure(n, want, b.members(nodes), b.securityGroup)
		return err
	})
	if b.faults.note(objectOf(s), err) != nil {
		return nil, err
	}
	return status(address), nil
}

// UpdateLoadBalancer gives new nodes their place in the back-end pool and takes those that are gone out.
func (b balancer) UpdateLoadBalancer(_ context.Context, _ string, s *v1.Service, nodes []*v1.Node) error {
	return b.network.Update(func(n *vnet.Network) error {
		lb, ok := n.LoadBalancer(balancerOf(s))
		if !ok {
			return fmt.Errorf("update load balancer of service %s/%s: there is none", s.Namespace, s.Name)
		}
		setMembers(n, lb, b.members(nodes))
		return nil
	})
}

// EnsureLoadBalancerDeleted takes the Service's front end, rules, probes and security rules away and gives its address back. What is not
// there is no error.
func (b balancer) EnsureLoadBalancerDeleted(_ context.Context, _ string, s *v1.Service) error {
	name := cloudprovider.DefaultLoadBalancerName(s)
	return b.faults.note(objectOf(s), b.network.Update(func(n *vnet.Network) error {
		for i := range n.LoadBalancers {
			remove(n, &n.LoadBalancers[i], name)
		}
		if g, ok := n.SecurityGroup(b.securityGroup); ok {
			return ensureSecurity(g, service{name: name}, netip.Addr{})
		}
		return nil
	}))
}

// remove takes a Service's front end, rules and probes off a load balancer.
func remove(n *vnet.Network, lb *vnet.LoadBalancer, name string) {
	replaceRules(lb, service{name: name})
	before := len(lb.Frontends)
	lb.Frontends = slices.DeleteFunc(lb.Frontends, func(f vnet.Frontend) bool { return f.Name == name })
	if len(lb.Frontends) < before {
		n.ReleasePublicIP(publicIPName(name))
	}
}

// balancerOf returns the name of the load balancer that a Service asks for.
func balancerOf(s *v1.Service) string {
	if strings.EqualFold(s.Annotations[annotationInternal], "true") {
		return InternalName
	}
	return LoadBalancerName
}

func status(a netip.Addr) *v1.LoadBalancerStatus {
	return &v1.LoadBalancerStatus{Ingress: []v1.LoadBalancerIngress{{IP: a.String()}}}
}

// service is what one Service wants of the load balancer.
type service struct {
	name      string     // a<uid>
	balancer  string     // the load balancer's name
	object    string     // namespace/name, for messages
	asked     netip.Addr // spec.loadBalancerIP
	published netip.Addr // status.loadBalancer: what clients may know already
	rules     []vnet.Rule
	probes    []vnet.Probe
	security  []vnet.SecurityRule // without priority and destination
}

// want reads a Service. What Azure's load balancer has and the lab's has not yet is an error that says so.
func want(s *v1.Service) (service, error) {
	w := service{name: cloudprovider.DefaultLoadBalancerName(s), object: s.Namespace + "/" + s.Name, balancer: balancerOf(s)}
	fail := func(format string, a ...any) (service, error) {
		return service{}, fmt.Errorf("service %s: %w", w.object, fmt.Errorf(format, a...))
	}
	if slices.Contains(s.Spec.IPFamilies, v1.IPv6Protocol) {
		return fail("spec.ipFamilies: the lab's load balancer has no IPv6 front ends yet")
	}
	if s.Spec.LoadBalancerIP != "" {
		a, err := netip.ParseAddr(s.Spec.LoadBalancerIP)
		if err != nil {
			return fail("spec.loadBalancerIP: %w", err)
		}
		w.asked = a
	}
	if in := s.Status.LoadBalancer.Ingress; len(in) > 0 {
		w.published, _ = netip.ParseAddr(in[0].IP)
	}
	for _, p := range s.Spec.Ports {
		if err := w.addPort(s, p); err != nil {
			return fail("port %d: %w", p.Port, err)
		}
	}
	if err := w.addSecurity(s); err != nil {
		return fail("%w", err)
	}
	return w, nil
}

// addPort adds a port's rule and probe, with cloud-provider-azure's names and settings.
func (w *service) addPort(s *v1.Service, p v1.ServicePort) error {
	protocol, ok := map[v1.Protocol]string{v1.ProtocolTCP: vnet.ProtocolTCP, v1.ProtocolUDP: vnet.ProtocolUDP}[p.Protocol]
	if !ok {
		return fmt.Errorf("an Azure load balancer carries TCP and UDP, not %s", p.Protocol)
	}
	idle, err := idleTimeout(s)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%s-%d", w.name, p.Protocol, p.Port)
	rule := vnet.Rule{
		Name: name, Frontend: w.name, BackendPool: LoadBalancerName, Protocol: protocol, FrontendPort: uint16(p.Port),
		BackendPort: uint16(p.Port),
		FloatingIP:  true, IdleTimeoutMinutes: idle, LoadDistribution: vnet.DistributionDefault,
	}
	if s.Spec.SessionAffinity == v1.ServiceAffinityClientIP {
		rule.LoadDistribution = vnet.DistributionSourceIP
	}
	probe := vnet.Probe{Name: name, Protocol: vnet.ProtocolTCP, Port: uint16(p.NodePort), IntervalSeconds: 5, Count: 2}
	switch {
	case s.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal:
		probe.Protocol, probe.Port, probe.RequestPath = vnet.ProtocolHTTP, uint16(s.Spec.HealthCheckNodePort), "/healthz"
	case protocol == vnet.ProtocolUDP:
		w.rules = append(w.rules, rule)
		return nil
	}
	if probe.Port == 0 {
		return fmt.Errorf("it has no node port to probe; leave spec.allocateLoadBalancerNodePorts at true")
	}
	rule.Probe = name
	w.rules, w.probes = append(w.rules, rule), append(w.probes, probe)
	return nil
}

// ensure makes the network have what the Service wants and returns its front end's address.
func ensure(n *vnet.Network, w service, nodes []string, securityGroup string) (netip.Addr, error) {
	for i := range n.LoadBalancers { // where the Service asked for the other one before
		if other := &n.LoadBalancers[i]; other.Name != w.balancer {
			remove(n, other, w.name)
		}
	}
	lb := ensureBalancer(n, w.balancer)
	setMembers(n, lb, nodes)
	address, err := ensureFrontend(n, lb, w)
	if err != nil {
		return address, fmt.Errorf("service %s: %w", w.object, err)
	}
	for i := range w.rules {
		w.rules[i].TCPReset = lb.SKU == vnet.SKUStandard && w.rules[i].Protocol == vnet.ProtocolTCP
		w.rules[i].DisableOutboundSNAT = lb.SKU == vnet.SKUStandard && w.balancer == LoadBalancerName
	}
	replaceRules(lb, w)
	if securityGroup == "" {
		return address, nil
	}
	g, ok := n.SecurityGroup(securityGroup)
	if !ok {
		return address, fmt.Errorf("service %s: no network security group %s", w.object, securityGroup)
	}
	return address, ensureSecurity(g, w, address)
}

// ensureBalancer returns the load balancer of a name. It makes one of the other's SKU, and a Standard one where there is no other.
func ensureBalancer(n *vnet.Network, name string) *vnet.LoadBalancer {
	if lb, ok := n.LoadBalancer(name); ok {
		return lb
	}
	made := vnet.LoadBalancer{Name: name, SKU: vnet.SKUStandard}
	if len(n.LoadBalancers) > 0 {
		made.SKU = n.LoadBalancers[0].SKU
	}
	n.LoadBalancers = append(n.LoadBalancers, made)
	return &n.LoadBalancers[len(n.LoadBalancers)-1]
}

// ensureFrontend keeps the front end that there is, unless another address is asked for; a new one gets the address that was
// asked for, or that the Service's clients know already, or the next free one.
func ensureFrontend(n *vnet.Network, lb *vnet.LoadBalancer, w service) (netip.Addr, error) {
	if f, ok := frontend(lb, w.name); ok {
		if !w.asked.IsValid() || w.asked == f.Address {
			return f.Address, nil
		}
		lb.Frontends = slices.DeleteFunc(lb.Frontends, func(f vnet.Frontend) bool { return f.Name == w.name })
		n.ReleasePublicIP(publicIPName(w.name))
	}
	front := vnet.Frontend{Name: w.name}
	var err error
	if w.balancer == InternalName {
		front, err = internalFrontend(n, lb, w)
	} else {
		front.Address, err = publicAddress(n, lb, w)
	}
	if err == nil {
		lb.Frontends = append(lb.Frontends, front)
	}
	return front.Address, err
}

// internalFrontend returns a front end with an address of the nodes' subnet: the one that was asked for, or that the Service's clients know
// already, or the next free one.
func internalFrontend(n *vnet.Network, lb *vnet.LoadBalancer, w service) (vnet.Frontend, error) {
	members := lb.BackendPools[0].Members
	if len(members) == 0 {
		return vnet.Frontend{}, errors.New("no node has an interface, whose subnet the front end would be in")
	}
	nic, _ := n.NIC(members[0].NIC)
	front := vnet.Frontend{Name: w.name, VNet: nic.VNet, Subnet: nic.Subnet}
	var err error
	if front.Address, err = n.AllocateFrontend(nic.VNet, nic.Subnet, cmp.Or(w.asked, w.published)); err != nil && !w.asked.IsValid() {
		front.Address, err = n.AllocateFrontend(nic.VNet, nic.Subnet, netip.Addr{})
	}
	return front, err
}

func publicAddress(n *vnet.Network, lb *vnet.LoadBalancer, w service) (netip.Addr, error) {
	name := publicIPName(w.name)
	if w.asked.IsValid() {
		// An address that was made beforehand, and that nothing uses, can be asked for.
		if slices.ContainsFunc(n.PublicIPs, func(p vnet.PublicIP) bool { return p.Address == w.asked && !used(n, lb, p) }) {
			return w.asked, nil
		}
		p, err := n.AllocatePublicIP(name, w.asked)
		if err != nil {
			return p.Address, fmt.Errorf("spec.loadBalancerIP: %w", err)
		}
		return p.Address, nil
	}
	if p, err := n.AllocatePublicIP(name, w.published); err == nil {
		return p.Address, nil
	}
	p, err := n.AllocatePublicIP(name, netip.Addr{})
	return p.Address, err
}

func used(n *vnet.Network, lb *vnet.LoadBalancer, p vnet.PublicIP) bool {
	for _, nic := range n.NICs {
		if slices.ContainsFunc(nic.IPConfigs, func(c vnet.IPConfig) bool { return c.PublicIP == p.Name }) {
			return true
		}
	}
	return slices.ContainsFunc(lb.Frontends, func(f vnet.Frontend) bool { return f.Address == p.Address })
}

// publicIPName returns what cloud-provider-azure calls the public address that it makes for a Service.
func publicIPName(name string) string { return LoadBalancerName + "-" + name }

func frontend(lb *vnet.LoadBalancer, name string) (vnet.Frontend, bool) {
	i := slices.IndexFunc(lb.Frontends, func(f vnet.Frontend) bool { return f.Name == name })
	if i < 0 {
		return vnet.Frontend{}, false
	}
	return lb.Frontends[i], true
}

// replaceRules replaces the rules and probes of a Service.
func replaceRules(lb *vnet.LoadBalancer, w service) {
	probes := map[string]bool{}
	lb.Rules = slices.DeleteFunc(lb.Rules, func(r vnet.Rule) bool {
		if r.Frontend == w.name {
			probes[r.Probe] = true
		}
		return r.Frontend == w.name
	})
	lb.Probes = slices.DeleteFunc(lb.Probes, func(p vnet.Probe) bool { return probes[p.Name] })
	lb.Rules, lb.Probes = append(lb.Rules, w.rules...), append(lb.Probes, w.probes...)
}

// setMembers makes the back-end pool the primary IP configurations of the nodes' NICs. Machines that have no NIC here (virtual
// nodes) have no place in it.
func setMembers(n *vnet.Network, lb *vnet.LoadBalancer, nodes []string) {
	pool := vnet.BackendPool{Name: LoadBalancerName}
	for _, nic := range n.NICs {
		if slices.Contains(nodes, nic.Machine) {
			pool.Members = append(pool.Members, vnet.IPConfigRef{NIC: nic.Name, IPConfig: nic.Primary().Name})
		}
	}
	i := slices.IndexFunc(lb.BackendPools, func(p vnet.BackendPool) bool { return p.Name == LoadBalancerName })
	switch {
	case i < 0:
		lb.BackendPools = append(lb.BackendPools, pool)
	case !reflect.DeepEqual(lb.BackendPools[i], pool):
		lb.BackendPools[i] = pool
	}
}
