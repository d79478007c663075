package oracle

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
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
	s.forMaps(&c, seed)
	return c
}

// forMaps draws what the nftables modes alone have, by numbers of their own.
func (s *source) forMaps(c *Case, seed uint64) {
	s.Rand = rand.New(rand.NewPCG(seed, 1))
	if s.chance(2) {
		c.Settings.ServiceCIDRs = pick(s, []string{"10.0.0.0/16", "fd00:10::/112"}, []string{"fd00:10::/112", "10.0.0.0/16", "10.96.0.0/20"})
	}
	for i := range c.Steps {
		c.Steps[i].Draw = s.Uint32()
	}
	if seed%10 == 0 {
		c.Settings.Landing, c.Steps[len(c.Steps)-1].Full = true, true
	}
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
