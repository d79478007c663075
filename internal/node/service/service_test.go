package service

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pointer[T any](v T) *T { return &v }

// endpoint reads "ADDRESS [flags]": l local, n not ready, s not serving, t terminating, z=ZONE, m=NODE.
func endpoint(text string) discoveryv1.Endpoint {
	fields := strings.Fields(text)
	e := discoveryv1.Endpoint{Addresses: fields[:1], NodeName: pointer("other")}
	for _, f := range fields[1:] {
		name, value, _ := strings.Cut(f, "=")
		if (name == "z" || name == "m") && e.Hints == nil {
			e.Hints = &discoveryv1.EndpointHints{}
		}
		switch name {
		case "l":
			e.NodeName = pointer("me")
		case "n":
			e.Conditions.Ready = pointer(false)
		case "s":
			e.Conditions.Serving = pointer(false)
		case "t":
			e.Conditions.Terminating = pointer(true)
		case "z":
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: value})
		case "m":
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: value})
		}
	}
	return e
}

func slice(name string, family discoveryv1.AddressType, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: family,
		Ports:       []discoveryv1.EndpointPort{{Name: pointer("http"), Port: pointer(int32(8080))}},
	}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, endpoint(e))
	}
	return s
}

func web() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1", "fd00::1"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080}},
		},
	}
}

func addrs(endpoints []Endpoint) string {
	var out []string
	for _, e := range endpoints {
		out = append(out, strings.TrimSuffix(e.String(), ":8080"))
	}
	return strings.Join(out, " ")
}

func TestChoiceOfEndpoints(t *testing.T) {
	for name, c := range map[string]struct {
		endpoints      []string
		cluster, local string
	}{
		"ready":                          {[]string{"1.0.0.2 l", "1.0.0.1", "1.0.0.3 n s"}, "1.0.0.1 1.0.0.2", "1.0.0.2"},
		"none":                           {nil, "", ""},
		"serving while terminating":      {[]string{"1.0.0.1 n t", "1.0.0.2 l n t"}, "1.0.0.1 1.0.0.2", "1.0.0.2"},
		"local falls back by itself":     {[]string{"1.0.0.1", "1.0.0.2 l n t"}, "1.0.0.1", "1.0.0.2"},
		"neither ready nor serving":      {[]string{"1.0.0.1 n s t", "1.0.0.2 n"}, "", ""},
		"zone hints":                     {[]string{"1.0.0.1 z=z1", "1.0.0.2 l z=z2"}, "1.0.0.1", "1.0.0.2"},
		"zone hints, not on all":         {[]string{"1.0.0.1 z=z1", "1.0.0.2"}, "1.0.0.1 1.0.0.2", ""},
		"zone hints, none for this zone": {[]string{"1.0.0.1 z=z3", "1.0.0.2 z=z2"}, "1.0.0.1 1.0.0.2", ""},
		"node hints before zone hints":   {[]string{"1.0.0.1 z=z1 m=other", "1.0.0.2 z=z1 m=me"}, "1.0.0.2", ""},
		"hints of unready do not count":  {[]string{"1.0.0.1 z=z1", "1.0.0.2 n s"}, "1.0.0.1", ""},
		"sorted as text":                 {[]string{"1.0.0.7", "1.0.0.26", "1.0.0.7"}, "1.0.0.26 1.0.0.7", ""},
	} {
		t.Run(name, func(t *testing.T) {
			ports := Build(IPv4, Node{Name: "me", Zone: "z1"}, []*corev1.Service{web()}, []*discoveryv1.EndpointSlice{
				slice("a", discoveryv1.AddressTypeIPv4, c.endpoints...), slice("b", discoveryv1.AddressTypeIPv6, "fd00::5"),
			})
			if len(ports) != 1 {
				t.Fatalf("%d ports", len(ports))
			}
			if got := addrs(ports[0].ForCluster); got != c.cluster {
				t.Errorf("Cluster: %q, want %q", got, c.cluster)
			}
			if got := addrs(ports[0].ForLocal); got != c.local {
				t.Errorf("Local: %q, want %q", got, c.local)
			}
		})
	}
}

func TestFamilies(t *testing.T) {
	s := web()
	s.Spec.ExternalIPs = []string{"198.51.100.1", "2001:db8::1"}
	s.Spec.LoadBalancerSourceRanges = []string{" 10.0.0.0/8 ", "fd00::/8"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: "203.0.113.1"}, {IP: "2001:db8::2"}, {Hostname: "x"}, {IP: "203.0.113.2", IPMode: pointer(corev1.LoadBalancerIPModeProxy)},
	}
	slices6 := []*discoveryv1.EndpointSlice{slice("a", discoveryv1.AddressTypeIPv4, "1.0.0.1"),
		slice("b", discoveryv1.AddressTypeIPv6, "fd00::5")}
	for family, want := range map[Family]string{
		IPv4: "10.0.0.1 [198.51.100.1] [203.0.113.1] [10.0.0.0/8] [1.0.0.1:8080]",
		IPv6: "fd00::1 [2001:db8::1] [2001:db8::2] [fd00::/8] [[fd00::5]:8080]",
	} {
		p := Build(family, Node{}, []*corev1.Service{s}, slices6)[0]
		text := func(list any) string { return strings.TrimSpace(strings.ReplaceAll(sprint(list), "  ", " ")) }
		if got := strings.Join([]string{p.ClusterIP.String(), text(p.ExternalIPs), text(p.LoadBalancerIPs), text(p.SourceRanges),
			text(p.ForCluster)}, " "); got != want {
			t.Errorf("%s: %s, want %s", family, got, want)
		}
	}
}

// The API server still accepts leading zeros, which it reads as decimal, and IPv4 addresses as IPv6 ones.
func TestOldFormsOfAddresses(t *testing.T) {
	s := web()
	s.Spec.ExternalIPs = []string{"198.051.100.010", "::ffff:198.51.100.2", "2001:DB8:0::00a", "x", "fe80::1%lo"}
	s.Spec.LoadBalancerSourceRanges = []string{"010.1.2.3/16", "::ffff:10.9.0.0/112", "2001:DB8::1/64", "10.0.0.0/33"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.000.113.001"}, {IP: "::ffff:203.0.113.2"}}
	endpoints := []*discoveryv1.EndpointSlice{
		slice("a", discoveryv1.AddressTypeIPv4, "010.1.0.08", "10.1.0.8", "::ffff:10.1.0.9"),
		slice("b", discoveryv1.AddressTypeIPv6, "fd00:0::0:5"),
	}
	for family, want := range map[Family]string{
		IPv4: "[198.51.100.10 198.51.100.2] [203.0.113.1 203.0.113.2] [10.1.0.0/16 10.9.0.0/16] [10.1.0.8:8080 10.1.0.9:8080]",
		IPv6: "[2001:db8::a] [] [2001:db8::/64] [[fd00::5]:8080]",
	} {
		p := Build(family, Node{}, []*corev1.Service{s}, endpoints)[0]
		got := strings.Join([]string{sprint(p.ExternalIPs), sprint(p.LoadBalancerIPs), sprint(p.SourceRanges), sprint(p.ForCluster)}, " ")
		if got != want {
			t.Errorf("%s: %s, want %s", family, got, want)
		}
	}
}

func sprint(list any) string {
	var out []string
	switch list := list.(type) {
	case []netip.Addr:
		for _, v := range list {
			out = append(out, v.String())
		}
	case []netip.Prefix:
		for _, v := range list {
			out = append(out, v.String())
		}
	case []Endpoint:
		for _, v := range list {
			out = append(out, v.String())
		}
	}
	return "[" + strings.Join(out, " ") + "]"
}

func TestServicesThatMakeNoPorts(t *testing.T) {
	for name, change := range map[string]func(*corev1.Service){
		"headless":      func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} },
		"external name": func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName },
		"another proxy": func(s *corev1.Service) { s.Labels = map[string]string{LabelProxyName: "x"} },
		"no address":    func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil },
		"other family":  func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "fd00::1", nil },
	} {
		s := web()
		change(s)
		if ports := Build(IPv4, Node{}, []*corev1.Service{s}, nil); len(ports) != 0 {
			t.Errorf("%s: %+v", name, ports)
		}
	}
}

func TestPoliciesAndRanges(t *testing.T) {
	s := web()
	s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 32000
	s.Spec.InternalTrafficPolicy = pointer(corev1.ServiceInternalTrafficPolicyLocal)
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "0.0.0.0/0"}
	p := Build(IPv4, Node{}, []*corev1.Service{s}, nil)[0]
	if p.ExternalPolicy != Local || p.InternalPolicy != Local || p.HealthCheckNodePort != 32000 || p.AffinitySeconds != 10800 ||
		p.SourceRanges != nil {
		t.Errorf("got %+v", p)
	}
	s.Spec.Type = corev1.ServiceTypeClusterIP // nothing external is left that a policy could be for
	p = Build(IPv4, Node{}, []*corev1.Service{s}, nil)[0]
	if p.ExternalPolicy != Cluster || p.HealthCheckNodePort != 0 {
		t.Errorf("got %+v", p)
	}
}

func TestHealthChecksCountAddressesOnce(t *testing.T) {
	s := web()
	s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 32000
	s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "https", Port: 443})
	es := slice("a", discoveryv1.AddressTypeIPv4, "1.0.0.1 l", "1.0.0.2 l", "1.0.0.3", "1.0.0.4 l n t")
	es.Ports = append(es.Ports, discoveryv1.EndpointPort{Name: pointer("https"), Port: pointer(int32(8443))})
	checks := HealthChecks(Build(IPv4, Node{Name: "me"}, []*corev1.Service{s}, []*discoveryv1.EndpointSlice{es}))
	if !slices.Equal(checks, []HealthCheck{{Key{"ns", "web"}, 32000, 2}}) {
		t.Errorf("got %+v", checks)
	}
	// A slice that has not followed a change of the service's ports yet counts, as in kube-proxy.
	late := slice("b", discoveryv1.AddressTypeIPv4, "1.0.0.2 l", "1.0.0.5 l", "1.0.0.6")
	late.Ports[0].Name = pointer("old")
	checks = HealthChecks(Build(IPv4, Node{Name: "me"}, []*corev1.Service{s}, []*discoveryv1.EndpointSlice{es, late}))
	if !slices.Equal(checks, []HealthCheck{{Key{"ns", "web"}, 32000, 3}}) {
		t.Errorf("got %+v", checks)
	}
}

// TestPortsStaySorted whatever comes and goes, and in whatever order.
func TestPortsStaySorted(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	ports, want := NewPorts(), map[string]Key{}
	for range 500 {
		key := Key{Namespace: "n", Service: fmt.Sprintf("s%02d", r.IntN(30))}
		if r.IntN(2) == 0 {
			ports.Put(key, nil)
			delete(want, key.Service)
		} else {
			ports.Put(key, []Port{{Name: Name{Namespace: key.Namespace, Service: key.Service}, Port: uint16(r.IntN(9))}})
			want[key.Service] = key
		}
		var names []string
		for _, p := range ports.All() {
			names = append(names, p.Service)
		}
		if sorted := slices.Sorted(maps.Keys(want)); !slices.Equal(names, sorted) {
			t.Fatalf("got %q, want %q", names, sorted)
		}
	}
}
