package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	netutils "k8s.io/utils/net"
)

// source makes random worlds. The same seed makes the same ones.
type source struct {
	*rand.Rand
	settings Settings
	serial   int
}

// Random makes a world and changes it mutations times.
func Random(seed uint64, mutations int) Case {
	s := &source{Rand: rand.New(rand.NewPCG(seed, 0))}
	s.settings = s.newSettings()
	w := World{Services: map[string]*corev1.Service{}, Slices: map[string]*discoveryv1.EndpointSlice{}, Zone: pick(s, "", "zone-a", "zone-b")}
	for range s.IntN(7) {
		s.addService(&w)
	}
	agree(&w)
	c := Case{Settings: s.settings, Steps: []World{w}}
	for range mutations {
		next := c.Steps[len(c.Steps)-1].Clone()
		next.Full = s.chance(4)
		for range 1 + s.IntN(4) {
			s.mutate(&next)
		}
		agree(&next)
		c.Steps = append(c.Steps, next)
	}
	return c
}

func (s *source) chance(oneIn int) bool { return s.IntN(oneIn) == 0 }

func pick[T any](s *source, values ...T) T { return values[s.IntN(len(values))] }

func anyKey[V any](s *source, m map[string]V) string {
	if len(m) == 0 {
		return ""
	}
	return pick(s, slices.Sorted(maps.Keys(m))...)
}

func (s *source) newSettings() Settings {
	v := Settings{
		IPv6: s.chance(3), MasqueradeBit: pick(s, 14, 14, 14, 0, 31), MasqueradeAll: s.chance(5),
		LocalhostNodePorts: s.chance(2), TCPLiberal: s.chance(5), NodeIP: "10.240.0.4",
	}
	if v.IPv6 {
		v.NodeIP = "fd00:240::4"
	}
	switch s.IntN(4) {
	case 0, 1:
		v.ClusterCIDR = "10.244.0.0/16"
		if v.IPv6 {
			v.ClusterCIDR = "fd00:244::/48"
		}
	case 2:
		v.PodInterface = pick(s, "azv+", "cbr0")
	}
	if s.chance(4) {
		v.NodeAddresses = []string{"10.240.0.4/24", "10.240.1.4/24", "fd00:240::4/64", "fd00:240:1::4/64"}
		v.NodePortAddresses = pick(s, []string{"10.240.0.0/16", "fd00:240::/32"}, []string{"127.0.0.0/8", "10.240.1.0/24"},
			[]string{"fd00:240:1::/64", "::1/128"}, []string{"192.168.0.0/16"}, []string{"10.240.0.0/24", "0.0.0.0/0"}, []string{"127.0.0.1/32"})
	}
	return v
}

var (
	namespaces   = []string{"default", "web", "kube-system", strings.Repeat("n", 63)}
	serviceNames = []string{"a", "api", "web", "web-1", "db", "dns", "z9", strings.Repeat("s", 63)}
	portNames    = []string{"http", "https", "p", "p-1", "dns-tcp", strings.Repeat("port-", 12) + "end"}
)

// addService adds one with slices, unless the name drawn is taken.
func (s *source) addService(w *World) {
	namespace, name := pick(s, namespaces...), pick(s, serviceNames...)
	key := namespace + "/" + name
	if w.Services[key] != nil {
		return
	}
	w.Services[key] = s.newService(w, namespace, name)
	if !s.chance(8) {
		s.addSlices(w, key)
	}
}

func (s *source) newService(w *World, namespace, name string) *corev1.Service {
	v := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
	}
	v.Spec.Type = pick(s, corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)
	if v.Spec.Type == corev1.ServiceTypeClusterIP && s.chance(6) {
		v.Spec.ClusterIP = corev1.ClusterIPNone
		v.Spec.ClusterIPs = []string{corev1.ClusterIPNone}
	}
	if s.chance(20) {
		v.Labels = map[string]string{labelProxyName: "other"}
	}
	s.fill(w, v)
	return v
}

// fill draws all of the spec that follows from the type, and keeps what is there of addresses.
func (s *source) fill(w *World, v *corev1.Service) {
	spec := &v.Spec
	spec.ExternalIPs = nil
	if s.chance(4) {
		spec.ExternalIPs = s.addresses("203.0.113.", "2001:db8:3::", 3)
	}
	s.ports(w, v)
	s.policies(v)
	s.affinity(v)
	s.balancer(w, v)
	if spec.Type == corev1.ServiceTypeExternalName {
		*spec = corev1.ServiceSpec{Type: spec.Type, ExternalName: "example.org", Ports: spec.Ports, ExternalIPs: spec.ExternalIPs,
			SessionAffinity: corev1.ServiceAffinityNone}
		for i := range spec.Ports {
			spec.Ports[i].NodePort = 0
		}
		return
	}
	if spec.ClusterIP == "" {
		s.clusterIPs(spec)
	}
}

func (s *source) clusterIPs(spec *corev1.ServiceSpec) {
	s.serial++
	v4, v6 := fmt.Sprintf("10.0.%d.%d", s.serial/250, s.serial%250+1), fmt.Sprintf("fd00:10::%x", s.serial+1)
	spec.IPFamilies = pick(s, []corev1.IPFamily{corev1.IPv4Protocol}, []corev1.IPFamily{corev1.IPv6Protocol},
		[]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol})
	spec.ClusterIPs = nil
	for _, f := range spec.IPFamilies {
		ip := v4
		if f == corev1.IPv6Protocol {
			ip = v6
		}
		spec.ClusterIPs = append(spec.ClusterIPs, ip)
	}
	spec.ClusterIP = spec.ClusterIPs[0]
}

// addresses draws up to n of both families, a few in the forms that old validation still lets through
// (k8s.io/apimachinery pkg/util/validation/ip.go, IsValidIPForLegacyField).
func (s *source) addresses(v4, v6 string, n int) []string {
	var out []string
	for range 1 + s.IntN(n) {
		last := 1 + s.IntN(9)
		switch {
		case s.chance(16):
			out = append(out, fmt.Sprintf("%s%03d", v4, last)) // leading zeros, decimal
		case s.chance(24):
			out = append(out, fmt.Sprintf("::ffff:%s%d", v4, last)) // IPv4 in IPv6's clothes
		case s.chance(16):
			out = append(out, fmt.Sprintf("%s00AB:%x", v6[:len(v6)-1]+"0:0:0:", last))
		case s.chance(3):
			out = append(out, fmt.Sprintf("%s%x", v6, last))
		default:
			out = append(out, fmt.Sprintf("%s%d", v4, last))
		}
	}
	return out
}

func (s *source) ports(w *World, v *corev1.Service) {
	old := v.Spec.Ports
	v.Spec.Ports = nil
	if v.Spec.Type == corev1.ServiceTypeExternalName && s.chance(2) {
		return
	}
	n := pick(s, 1, 1, 1, 2, 3)
	names := slices.Clone(portNames)
	s.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	if n == 1 && s.chance(2) {
		names[0] = ""
	}
	if len(old) > 0 && s.chance(2) { // keep the first as it was
		v.Spec.Ports = append(v.Spec.Ports, old[0])
	}
	for i := 0; len(v.Spec.Ports) < n; i++ {
		p := corev1.ServicePort{
			Name: names[i], Protocol: pick(s, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP),
			Port: pick[int32](s, 53, 80, 443, 8080, 65535, 1),
		}
		p.TargetPort = intstr.FromInt32(p.Port)
		if slices.ContainsFunc(v.Spec.Ports, func(o corev1.ServicePort) bool {
			return o.Name == p.Name || o.Port == p.Port && o.Protocol == p.Protocol
		}) {
			if i+1 == len(names) {
				break
			}
			continue
		}
		v.Spec.Ports = append(v.Spec.Ports, p)
	}
	if len(v.Spec.Ports) > 1 && v.Spec.Ports[0].Name == "" {
		v.Spec.Ports = v.Spec.Ports[1:]
	}
	s.nodePorts(w, v)
}

// nodePorts gives each port of the types that have one a node port of its own; load balancers may do without.
func (s *source) nodePorts(w *World, v *corev1.Service) {
	without := v.Spec.Type == corev1.ServiceTypeLoadBalancer && s.chance(4)
	for i := range v.Spec.Ports {
		p := &v.Spec.Ports[i]
		switch {
		case v.Spec.Type != corev1.ServiceTypeNodePort && v.Spec.Type != corev1.ServiceTypeLoadBalancer || without:
			p.NodePort = 0
		case p.NodePort == 0:
			p.NodePort = s.freeNodePort(w, v)
		}
	}
	if v.Spec.Type == corev1.ServiceTypeLoadBalancer {
		allocate := !without
		v.Spec.AllocateLoadBalancerNodePorts = &allocate
	} else {
		v.Spec.AllocateLoadBalancerNodePorts = nil
	}
}

func (s *source) freeNodePort(w *World, own *corev1.Service) int32 {
	taken := map[int32]bool{}
	for _, v := range append(slices.Collect(maps.Values(w.Services)), own) {
		taken[v.Spec.HealthCheckNodePort] = true
		for i := range v.Spec.Ports {
			taken[v.Spec.Ports[i].NodePort] = true
		}
	}
	for {
		if port := int32(30000 + s.IntN(2768)); !taken[port] {
			return port
		}
	}
}

func (s *source) policies(v *corev1.Service) {
	spec := &v.Spec
	internal := pick(s, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyCluster,
		corev1.ServiceInternalTrafficPolicyLocal)
	spec.InternalTrafficPolicy = &internal
	spec.ExternalTrafficPolicy = ""
	if spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer ||
		spec.Type == corev1.ServiceTypeClusterIP && len(spec.ExternalIPs) > 0 {
		spec.ExternalTrafficPolicy = pick(s, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	}
	spec.PublishNotReadyAddresses = s.chance(6)
}

func (s *source) affinity(v *corev1.Service) {
	v.Spec.SessionAffinity, v.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	if s.chance(4) {
		seconds := pick[int32](s, 1, 10, 10800, 86400)
		v.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		v.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

func (s *source) balancer(w *World, v *corev1.Service) {
	v.Status.LoadBalancer, v.Spec.LoadBalancerSourceRanges = corev1.LoadBalancerStatus{}, nil
	if v.Spec.Type != corev1.ServiceTypeLoadBalancer {
		v.Spec.HealthCheckNodePort = 0
		return
	}
	if v.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		v.Spec.HealthCheckNodePort = 0
	} else if v.Spec.HealthCheckNodePort == 0 {
		v.Spec.HealthCheckNodePort = s.freeNodePort(w, v)
	}
	if !s.chance(5) {
		s.ingress(v)
	}
	if s.chance(2) {
		for range 1 + s.IntN(3) {
			v.Spec.LoadBalancerSourceRanges = append(v.Spec.LoadBalancerSourceRanges, s.sourceRange())
		}
	}
}

func (s *source) sourceRange() string {
	switch s.IntN(24) {
	case 0:
		return "0.0.0.0/0"
	case 1:
		return "::/0"
	case 2:
		return " 10.240.0.0/16 "
	case 3:
		return "010.001.000.000/16"
	case 4:
		return "::ffff:10.9.0.0/112"
	}
	return pick(s, "10.240.0.0/16", "10.1.2.3/16", "10.1.2.3/32", "192.168.0.0/24", "fd00:240::/32", "2001:db8::1:2/64", "2001:db8::1/128",
		"172.16.0.1/12")
}

func (s *source) ingress(v *corev1.Service) {
	if s.chance(12) {
		v.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "lb.example.org"}}
		return
	}
	for _, ip := range s.addresses("198.51.100.", "2001:db8:5::", 2) {
		mode := pick(s, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)
		v.Status.LoadBalancer.Ingress = append(v.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip, IPMode: &mode})
	}
}

// addSlices adds slices of both families for a service, its endpoints split at random.
func (s *source) addSlices(w *World, service string) {
	v := w.Services[service]
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		if s.chance(10) {
			continue
		}
		var endpoints []discoveryv1.Endpoint
		for range pick(s, 0, 1, 1, 2, 3, 5) {
			endpoints = append(endpoints, s.newEndpoint(family))
		}
		s.hints(endpoints)
		for len(endpoints) > 0 {
			n := 1 + s.IntN(len(endpoints))
			s.addSlice(w, v, family, endpoints[:n])
			endpoints = endpoints[n:]
		}
		if s.chance(8) {
			s.addSlice(w, v, family, nil)
		}
	}
	if s.chance(12) {
		s.addSlice(w, v, discoveryv1.AddressTypeFQDN, []discoveryv1.Endpoint{{Addresses: []string{"www.example.org"}}})
	}
}

func (s *source) addSlice(w *World, v *corev1.Service, family discoveryv1.AddressType, endpoints []discoveryv1.Endpoint) {
	s.serial++
	name := fmt.Sprintf("slice-%d", s.serial)
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: v.Name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		AddressType: family, Endpoints: slices.Clone(endpoints),
	}
	if x, ok := v.Labels[labelProxyName]; ok { // the controller copies the service's labels
		slice.Labels[labelProxyName] = x
	}
	if v.Spec.ClusterIP == corev1.ClusterIPNone {
		slice.Labels[corev1.IsHeadlessService] = ""
	}
	for _, p := range v.Spec.Ports {
		if s.chance(20) {
			continue
		}
		name, protocol := p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)
		if s.chance(30) {
			protocol = corev1.ProtocolUDP
		}
		port := discoveryv1.EndpointPort{Name: &name, Protocol: &protocol}
		if !s.chance(30) {
			number := pick[int32](s, p.Port, 8080, 8080, 9090)
			port.Port = &number
		}
		slice.Ports = append(slice.Ports, port)
	}
	if len(slice.Ports) > 1 && s.chance(30) {
		slice.Ports = slice.Ports[:1]
	}
	w.Slices[v.Namespace+"/"+name] = slice
}

func (s *source) newEndpoint(family discoveryv1.AddressType) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{}
	ip := fmt.Sprintf("10.244.%d.%d", s.IntN(12), 1+s.IntN(30))
	switch {
	case family == discoveryv1.AddressTypeIPv6:
		ip = fmt.Sprintf("fd00:244:1:%x::%x", 1+s.IntN(12), 1+s.IntN(30)) // no other form is valid here
	case s.chance(20):
		ip = fmt.Sprintf("010.244.%03d.%03d", s.IntN(12), 1+s.IntN(30))
	case s.chance(30):
		ip = fmt.Sprintf("::ffff:10.244.%d.%d", s.IntN(12), 1+s.IntN(30))
	}
	e.Addresses = []string{ip}
	if s.chance(10) {
		more := "10.244.99.99"
		if family == discoveryv1.AddressTypeIPv6 {
			more = "fd00:244:1:99::99"
		}
		e.Addresses = append(e.Addresses, more)
	}
	if node := pick(s, "", NodeName, NodeName, "node-1", "node-2"); node != "" {
		e.NodeName = &node
	}
	e.Conditions = s.conditions()
	return e
}

// conditions are mostly those of a pod's life, and sometimes any.
func (s *source) conditions() discoveryv1.EndpointConditions {
	make := func(ready, serving, terminating bool) discoveryv1.EndpointConditions {
		return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	}
	switch s.IntN(8) {
	case 0, 1, 2:
		return make(true, true, false)
	case 3:
		return make(false, false, false)
	case 4:
		return make(false, true, true)
	case 5:
		return make(false, false, true)
	case 6:
		return discoveryv1.EndpointConditions{}
	}
	c := make(s.chance(2), s.chance(2), s.chance(2))
	if s.chance(2) {
		c.Serving = nil
	}
	if s.chance(2) {
		c.Terminating = nil
	}
	return c
}

// hints are those of a traffic distribution: mostly all endpoints have some.
func (s *source) hints(endpoints []discoveryv1.Endpoint) {
	kind := s.IntN(6)
	for i := range endpoints {
		e := &endpoints[i]
		e.Hints = nil
		if kind > 2 || s.chance(12) {
			continue
		}
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: pick(s, "zone-a", "zone-b", "zone-c")}}}
		if s.chance(4) {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: "zone-d"})
		}
		if kind == 0 {
			e.Hints.ForNodes = []discoveryv1.ForNode{{Name: pick(s, NodeName, "node-1")}}
		}
		if kind == 0 && s.chance(4) {
			e.Hints.ForZones = nil
		}
	}
}

// agree gives copies of one endpoint in a service the state of the first, unless one copy alone is local: see World.
func agree(w *World) {
	type id struct{ service, address string }
	copies := map[id][]*discoveryv1.Endpoint{}
	for _, key := range slices.Sorted(maps.Keys(w.Slices)) {
		slice := w.Slices[key]
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			ip := netutils.ParseIPSloppy(e.Addresses[0])
			if ip == nil {
				continue
			}
			k := id{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName], ip.String()}
			copies[k] = append(copies[k], e)
		}
	}
	for _, same := range copies {
		local := 0
		for _, e := range same {
			if e.NodeName != nil && *e.NodeName == NodeName {
				local++
			}
		}
		if local == 1 {
			continue
		}
		for _, e := range same[1:] {
			e.Conditions, e.NodeName, e.Hints = same[0].Conditions, same[0].NodeName, same[0].Hints
		}
	}
}

// mutate makes one change, or none where the world has nothing to change.
func (s *source) mutate(w *World) {
	switch s.IntN(10) {
	case 0:
		s.addService(w)
	case 1:
		s.removeService(w)
	case 2, 3:
		s.changeService(w)
	case 4:
		w.Zone = pick(s, "", "zone-a", "zone-b")
	case 5:
		s.resplit(w)
	case 6, 7:
		s.changeEndpoints(w)
	default:
		s.changeSlice(w)
	}
}

func (s *source) removeService(w *World) {
	key := anyKey(s, w.Services)
	if key == "" {
		return
	}
	if !s.chance(4) { // else the slices outlive the service
		for _, slice := range w.slicesOf(key) {
			delete(w.Slices, slice)
		}
	}
	delete(w.Services, key)
}

func (s *source) changeService(w *World) {
	key := anyKey(s, w.Services)
	if key == "" {
		return
	}
	v := w.Services[key]
	plain := v.Spec.Type != corev1.ServiceTypeExternalName && v.Spec.ClusterIP != corev1.ClusterIPNone
	switch kind := s.IntN(8); {
	case kind == 0: // another service of the same name
		w.Services[key] = s.newService(w, v.Namespace, v.Name)
	case kind == 1 && plain: // another type, with the cluster IP that it has
		v.Spec.Type = pick(s, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
		s.fill(w, v)
	case kind == 2 && plain:
		s.ports(w, v)
	case kind == 3 && plain:
		s.policies(v)
		s.balancer(w, v)
	case kind == 4 && plain:
		s.affinity(v)
	case kind == 5 && plain:
		s.balancer(w, v)
	case kind == 6: // nothing that a proxy reads
		if v.Annotations == nil {
			v.Annotations = map[string]string{}
		}
		v.Annotations["example.org/n"] = fmt.Sprint(s.IntN(1000))
	case kind == 7 && plain:
		if v.Labels == nil {
			v.Labels = map[string]string{labelProxyName: "other"}
		} else {
			v.Labels = nil
		}
		for _, slice := range w.slicesOf(key) { // the controller follows, sooner or later
			if s.chance(3) {
				continue
			}
			delete(w.Slices[slice].Labels, labelProxyName)
			if v.Labels != nil {
				w.Slices[slice].Labels[labelProxyName] = "other"
			}
		}
	}
}

func (s *source) changeEndpoints(w *World) {
	slice := w.Slices[anyKey(s, w.Slices)]
	if slice == nil || slice.AddressType == discoveryv1.AddressTypeFQDN {
		return
	}
	switch s.IntN(6) {
	case 0:
		slice.Endpoints = append(slice.Endpoints, s.newEndpoint(slice.AddressType))
	case 1:
		if n := len(slice.Endpoints); n > 0 {
			i := s.IntN(n)
			slice.Endpoints = slices.Delete(slice.Endpoints, i, i+1)
		}
	case 2:
		s.hints(slice.Endpoints)
	case 3: // a roll-out's end: all that are left terminate
		for i := range slice.Endpoints {
			slice.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: new(bool), Serving: ptr(s.chance(2)), Terminating: ptr(true)}
		}
	default:
		for i := range slice.Endpoints {
			if s.chance(2) {
				slice.Endpoints[i].Conditions = s.conditions()
			}
		}
	}
}

func ptr[T any](v T) *T { return &v }

func (s *source) changeSlice(w *World) {
	key := anyKey(s, w.Slices)
	if key == "" {
		return
	}
	slice := w.Slices[key]
	switch s.IntN(5) {
	case 0:
		delete(w.Slices, key)
	case 1: // another number behind a named port
		for i := range slice.Ports {
			slice.Ports[i].Port = ptr(pick[int32](s, 8080, 9090, 10000))
		}
	case 2: // copies of endpoints in a second slice, as while a controller moves them
		owner := w.Services[slice.Namespace+"/"+slice.Labels[discoveryv1.LabelServiceName]]
		if owner == nil || slice.AddressType == discoveryv1.AddressTypeFQDN {
			return
		}
		copies := slice.DeepCopy().Endpoints
		if s.chance(2) { // of an older time, when the pods were elsewhere: agree leaves them so where the first copy is local
			for i := range copies {
				copies[i].NodeName, copies[i].Conditions = ptr("node-2"), s.conditions()
			}
		}
		s.addSlice(w, owner, slice.AddressType, copies)
	case 3: // the same again, written a second time
		if slice.Annotations == nil {
			slice.Annotations = map[string]string{}
		}
		slice.Annotations[corev1.EndpointsLastChangeTriggerTime] = fmt.Sprintf("2026-01-02T03:04:%02dZ", s.IntN(60))
	case 4:
		if owner := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]; w.Services[owner] != nil {
			s.addSlices(w, owner)
		}
	}
}

// resplit takes the slices of a service and family away and writes the same endpoints in other slices.
func (s *source) resplit(w *World) {
	key := anyKey(s, w.Services)
	if key == "" {
		return
	}
	byFamily := map[discoveryv1.AddressType][]discoveryv1.Endpoint{}
	for _, name := range w.slicesOf(key) {
		slice := w.Slices[name]
		byFamily[slice.AddressType] = append(byFamily[slice.AddressType], slice.Endpoints...)
		delete(w.Slices, name)
	}
	for _, family := range slices.Sorted(maps.Keys(byFamily)) {
		endpoints := byFamily[family]
		s.Shuffle(len(endpoints), func(i, j int) { endpoints[i], endpoints[j] = endpoints[j], endpoints[i] })
		for len(endpoints) > 0 {
			n := 1 + s.IntN(len(endpoints))
			s.addSlice(w, w.Services[key], family, endpoints[:n])
			endpoints = endpoints[n:]
		}
	}
}
