package cloud_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"

	"packetwalk.dev/internal/azure/cloud"
	"packetwalk.dev/internal/azure/vnet"
)

// network keeps what the provider makes of it, all or nothing and validated, as the fabric does.
type network struct {
	mu sync.Mutex
	n  vnet.Network
}

func (w *network) Update(change func(*vnet.Network) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := w.n.Clone()
	if err := change(&next); err != nil {
		return err
	}
	if err := next.Validate(); err != nil {
		return err
	}
	w.n = next
	return nil
}

func (w *network) Snapshot() (vnet.Network, vnet.Health) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n.Clone(), nil
}

func (w *network) lb(t *testing.T) vnet.LoadBalancer {
	t.Helper()
	n, _ := w.Snapshot()
	lb, ok := n.LoadBalancer(cloud.LoadBalancerName)
	if !ok {
		t.Fatal("no load balancer")
	}
	return *lb
}

func newNetwork(t *testing.T, sku string) *network {
	t.Helper()
	n := vnet.Network{
		VNets: []vnet.VNet{{Name: "v", AddressPrefixes: []netip.Prefix{netip.MustParsePrefix("10.13.0.0/16")},
			Subnets: []vnet.Subnet{{Name: "s", Prefix: netip.MustParsePrefix("10.13.76.0/24")}}}},
		LoadBalancers: []vnet.LoadBalancer{{Name: cloud.LoadBalancerName, SKU: sku}},
	}
	for _, m := range []string{"node0", "node1", "testvm"} {
		if _, err := n.AllocateNIC(m, "v", "s", 3); err != nil {
			t.Fatal(err)
		}
	}
	return &network{n: n}
}

func service(name, uid string, edit func(*v1.Service)) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid)},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicyCluster,
			Ports: []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: 30080}},
		},
	}
	if edit != nil {
		edit(s)
	}
	return s
}

func nodes(names ...string) []*v1.Node {
	var all []*v1.Node
	for _, n := range names {
		all = append(all, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}})
	}
	return all
}

func balancer(n cloud.Network) cloudprovider.LoadBalancer {
	b, _ := cloud.New(n, nil, "", nil).LoadBalancer()
	return b
}

func ensure(t *testing.T, n cloud.Network, s *v1.Service, names ...string) string {
	t.Helper()
	st, err := balancer(n).EnsureLoadBalancer(t.Context(), "kubernetes", s, nodes(names...))
	if err != nil {
		t.Fatal(err)
	}
	return st.Ingress[0].IP
}

const (
	internalAnnotation = "service.beta.kubernetes.io/azure-load-balancer-internal"
	idleAnnotation     = "service.beta.kubernetes.io/azure-load-balancer-tcp-idle-timeout"

	uid  = "4f9a1b2c-0d3e-11ec-9a03-0242ac130003"
	name = "a4f9a1b2c0d3e11ec9a030242ac13000"
)

var compare = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func TestEnsure(t *testing.T) {
	rule := vnet.Rule{
		Name: name + "-TCP-80", Frontend: name, BackendPool: "kubernetes", Probe: name + "-TCP-80", Protocol: "Tcp", FrontendPort: 80,
		BackendPort: 80,
		FloatingIP:  true, IdleTimeoutMinutes: 4, LoadDistribution: "Default",
	}
	probe := vnet.Probe{Name: name + "-TCP-80", Protocol: "Tcp", Port: 30080, IntervalSeconds: 5, Count: 2}
	with := func(edit func(*vnet.Rule)) vnet.Rule { r := rule; edit(&r); return r }
	for _, c := range []struct {
		name   string
		sku    string
		edit   func(*v1.Service)
		rules  []vnet.Rule
		probes []vnet.Probe
	}{
		{"cluster policy", vnet.SKUBasic, nil, []vnet.Rule{rule}, []vnet.Probe{probe}},
		{"standard", vnet.SKUStandard, nil, []vnet.Rule{with(func(r *vnet.Rule) { r.TCPReset, r.DisableOutboundSNAT = true, true })}, []vnet.Probe{probe}},
		{"affinity", vnet.SKUBasic, func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP },
			[]vnet.Rule{with(func(r *vnet.Rule) { r.LoadDistribution = "SourceIP" })}, []vnet.Probe{probe}},
		{"local policy", vnet.SKUBasic, func(s *v1.Service) {
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = v1.ServiceExternalTrafficPolicyLocal, 32000
		}, []vnet.Rule{rule}, []vnet.Probe{{Name: name + "-TCP-80", Protocol: "Http", Port: 32000, RequestPath: "/healthz", IntervalSeconds: 5,
			Count: 2}}},
		{"idle time", vnet.SKUBasic, func(s *v1.Service) { s.Annotations = map[string]string{idleAnnotation: "30"} },
			[]vnet.Rule{with(func(r *vnet.Rule) { r.IdleTimeoutMinutes = 30 })}, []vnet.Probe{probe}},
		{"udp has no probe", vnet.SKUBasic, func(s *v1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Protocol: v1.ProtocolUDP, Port: 53, NodePort: 30053})
		}, []vnet.Rule{rule, with(func(r *vnet.Rule) {
			r.Name, r.Probe, r.Protocol, r.FrontendPort, r.BackendPort = name+"-UDP-53", "", "Udp", 53, 53
		})}, []vnet.Probe{probe}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNetwork(t, c.sku)
			s := service("whereami", uid, c.edit)
			for range 2 { // the second time changes nothing
				if ip := ensure(t, n, s, "node0", "node1", "virtual-node-aci"); ip != "203.0.113.10" {
					t.Errorf("address %s", ip)
				}
				want := vnet.LoadBalancer{
					Name: "kubernetes", SKU: c.sku, Frontends: []vnet.Frontend{{Name: name, Address: netip.MustParseAddr("203.0.113.10")}},
					BackendPools: []vnet.BackendPool{{Name: "kubernetes",
						Members: []vnet.IPConfigRef{{NIC: "node0-nic", IPConfig: "ipconfig1"}, {NIC: "node1-nic", IPConfig: "ipconfig1"}}}},
					Rules: c.rules, Probes: c.probes,
				}
				if diff := cmp.Diff(want, n.lb(t), compare); diff != "" {
					t.Errorf("load balancer (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestServicesShareTheLoadBalancer(t *testing.T) {
	n := newNetwork(t, vnet.SKUBasic)
	b := balancer(n)
	one, two := service("one", uid, nil), service("two", "00000000-0000-0000-0000-000000000002", nil)
	if a, b := ensure(t, n, one, "node0"), ensure(t, n, two, "node0"); a != "203.0.113.10" || b != "203.0.113.11" {
		t.Errorf("addresses %s %s", a, b)
	}
	if err := b.UpdateLoadBalancer(t.Context(), "kubernetes", one, nodes("node1")); err != nil {
		t.Fatal(err)
	}
	if lb := n.lb(t); len(lb.Rules) != 2 || len(lb.Probes) != 2 || lb.BackendPools[0].Members[0].NIC != "node1-nic" ||
		len(lb.BackendPools[0].Members) != 1 {
		t.Errorf("%+v", lb)
	}
	for range 2 {
		if err := b.EnsureLoadBalancerDeleted(t.Context(), "kubernetes", one); err != nil {
			t.Fatal(err)
		}
	}
	if _, exists, err := b.GetLoadBalancer(t.Context(), "kubernetes", one); exists || err != nil {
		t.Error("still there", err)
	}
	st, exists, err := b.GetLoadBalancer(t.Context(), "kubernetes", two)
	if err != nil || !exists || st.Ingress[0].IP != "203.0.113.11" {
		t.Errorf("%v %v %v", st, exists, err)
	}
	if lb := n.lb(t); len(lb.Rules) != 1 || len(lb.Probes) != 1 || len(lb.Frontends) != 1 {
		t.Errorf("%+v", lb)
	}
	// The address is free again, and one that the Service's clients know is kept.
	if ip := ensure(t, n, service("three", "3", nil), "node1"); ip != "203.0.113.10" {
		t.Errorf("address %s", ip)
	}
	known := service("four", "4", func(s *v1.Service) { s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "203.0.113.44"}} })
	if ip := ensure(t, n, known, "node1"); ip != "203.0.113.44" {
		t.Errorf("address %s", ip)
	}
}

// TestPoolFollowsTheNodes hands over lists that are old: the pool is what the lister says, without nodes that are excluded.
func TestPoolFollowsTheNodes(t *testing.T) {
	n := newNetwork(t, vnet.SKUBasic)
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	all := nodes("node0", "node1", "testvm")
	all[2].Labels = map[string]string{v1.LabelNodeExcludeBalancers: ""}
	for _, node := range all {
		store.Add(node)
	}
	b, _ := cloud.New(n, corelisters.NewNodeLister(store), "", nil).LoadBalancer()
	members := func() string {
		var all []string
		for _, m := range n.lb(t).BackendPools[0].Members {
			all = append(all, m.NIC)
		}
		return strings.Join(all, " ")
	}
	if _, err := b.EnsureLoadBalancer(t.Context(), "kubernetes", service("whereami", uid, nil), nodes("node0")); err != nil {
		t.Fatal(err)
	}
	if got := members(); got != "node0-nic node1-nic" {
		t.Errorf("members %s", got)
	}
	all[1].Spec.Taints = []v1.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}
	if err := b.UpdateLoadBalancer(t.Context(), "kubernetes", service("whereami", uid, nil), all); err != nil {
		t.Fatal(err)
	}
	if got := members(); got != "node0-nic" {
		t.Errorf("members %s", got)
	}
}

func TestLoadBalancerIP(t *testing.T) {
	n := newNetwork(t, vnet.SKUBasic)
	ask := func(ip string) *v1.Service {
		return service("whereami", uid, func(s *v1.Service) { s.Spec.LoadBalancerIP = ip })
	}
	if _, err := func() (vnet.PublicIP, error) {
		var p vnet.PublicIP
		err := n.Update(func(n *vnet.Network) (err error) {
			p, err = n.AllocatePublicIP("mine", netip.MustParseAddr("203.0.113.60"))
			return err
		})
		return p, err
	}(); err != nil {
		t.Fatal(err)
	}
	for _, ip := range []string{"203.0.113.50", "203.0.113.60", "203.0.113.51"} {
		if got := ensure(t, n, ask(ip), "node0"); got != ip {
			t.Errorf("asked for %s, got %s", ip, got)
		}
	}
	if lb := n.lb(t); len(lb.Frontends) != 1 {
		t.Errorf("front ends %v", lb.Frontends)
	}
	final, _ := n.Snapshot()
	if len(final.PublicIPs) != 2 { // mine, and the Service's own
		t.Errorf("public addresses %v", final.PublicIPs)
	}
}

// TestInternal: a Service with the annotation has a front end of the nodes' subnet on the load balancer kubernetes-internal, and moves
// between the two with the annotation.
func TestInternal(t *testing.T) {
	n := newNetwork(t, vnet.SKUStandard)
	public := service("whereami", uid, nil)
	internal := service("whereami", uid, func(s *v1.Service) { s.Annotations = map[string]string{internalAnnotation: "true"} })
	asked := service("whereami", uid, func(s *v1.Service) {
		s.Annotations, s.Spec.LoadBalancerIP = internal.Annotations, "10.13.76.99"
	})
	for _, step := range []struct {
		service  *v1.Service
		balancer string
		want     string
	}{
		{public, "kubernetes", "203.0.113.10"}, {internal, "kubernetes-internal", "10.13.76.13"}, {asked, "kubernetes-internal", "10.13.76.99"},
		{public, "kubernetes", "203.0.113.10"},
	} {
		if got := ensure(t, n, step.service, "node0", "node1"); got != step.want {
			t.Errorf("address %s, want %s", got, step.want)
		}
		now, _ := n.Snapshot()
		for _, lb := range now.LoadBalancers {
			if has := len(lb.Frontends) + len(lb.Rules) + len(lb.Probes); lb.SKU != vnet.SKUStandard || (has > 0) != (lb.Name == step.balancer) {
				t.Errorf("load balancer %s: %+v", lb.Name, lb)
			}
		}
		if _, exists, err := balancer(n).GetLoadBalancer(t.Context(), "kubernetes", step.service); err != nil || !exists {
			t.Errorf("load balancer exists: %t, %v", exists, err)
		}
	}
	if now, _ := n.Snapshot(); len(now.PublicIPs) != 1 {
		t.Errorf("public addresses %v", now.PublicIPs)
	}
}

func TestRefused(t *testing.T) {
	n := newNetwork(t, vnet.SKUBasic)
	ensure(t, n, service("other", "o", nil), "node0")
	before, _ := n.Snapshot()
	for want, edit := range map[string]func(*v1.Service){
		"203.0.113.10 is in use": func(s *v1.Service) { s.Spec.LoadBalancerIP = "203.0.113.10" },
		"8.8.8.8 is not one of":  func(s *v1.Service) { s.Spec.LoadBalancerIP = "8.8.8.8" },
		"spec.loadBalancerIP":    func(s *v1.Service) { s.Spec.LoadBalancerIP = "nonsense" },
		"10.99.0.1 is outside": func(s *v1.Service) {
			s.Annotations, s.Spec.LoadBalancerIP = map[string]string{internalAnnotation: "true"}, "10.99.0.1"
		},
		"10.13.76.4 is not free": func(s *v1.Service) {
			s.Annotations, s.Spec.LoadBalancerIP = map[string]string{internalAnnotation: "true"}, "10.13.76.4"
		},
		"from 4 to 30": func(s *v1.Service) { s.Annotations = map[string]string{idleAnnotation: "31"} },
		"not a whole":  func(s *v1.Service) { s.Annotations = map[string]string{idleAnnotation: "4m"} },
		"not SCTP":     func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolSCTP },
		"no IPv6":      func(s *v1.Service) { s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol} },
		"no node port": func(s *v1.Service) { s.Spec.Ports[0].NodePort = 0 },
	} {
		_, err := balancer(n).EnsureLoadBalancer(t.Context(), "kubernetes", service("whereami", uid, edit), nodes("node0"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "default/whereami") {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	if after, _ := n.Snapshot(); !cmp.Equal(before, after, compare) {
		t.Error("a refused Service changed the network")
	}
}

// TestRun drives upstream's controller over a fake API: status, events, finalizer, deletion.
func TestRun(t *testing.T) {
	n := newNetwork(t, vnet.SKUBasic)
	client := fake.NewClientset(
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0"}},
		service("whereami", uid, nil),
		service("internal", "i", func(s *v1.Service) {
			s.Annotations = map[string]string{idleAnnotation: "31"}
		}),
	)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var faults cloud.Faults
	go func() {
		done <- cloud.Run(ctx, client, informers.NewSharedInformerFactory(client, 0), n, "kubernetes", "", &faults)
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	await := func(what string, ok func() bool) {
		t.Helper()
		eventually.Succeeds(t, 20*time.Second, func() error {
			if !ok() {
				return errors.New("no " + what)
			}
			return nil
		})
	}
	get := func() *v1.Service {
		s, err := client.CoreV1().Services("default").Get(ctx, "whereami", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	event := func(object, reason, message string) func() bool {
		return func() bool {
			list, err := client.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list.Items {
				if e.InvolvedObject.Name == object && e.Reason == reason && strings.Contains(e.Message, message) {
					return true
				}
			}
			return false
		}
	}
	await("address", func() bool {
		in := get().Status.LoadBalancer.Ingress
		return len(in) == 1 && in[0].IP == "203.0.113.10"
	})
	await("event", event("whereami", "EnsuredLoadBalancer", ""))
	await("refusal", event("internal", "SyncLoadBalancerFailed", "from 4 to 30"))
	if p := faults.Problems(); len(p) != 1 || !strings.Contains(p[0], "service default/internal: ") {
		t.Errorf("problems %q", p)
	}
	// One that has got a load balancer is no problem any more, nor is one that is not to have one.
	internal := map[string]string{idleAnnotation: "31"}
	for _, step := range []struct {
		problems int
		edit     func(*v1.Service)
	}{
		{0, func(s *v1.Service) { s.Annotations = nil }},
		{1, func(s *v1.Service) { s.Annotations = internal }},
		{0, func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeClusterIP }},
	} {
		s, err := client.CoreV1().Services("default").Get(ctx, "internal", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		step.edit(s)
		if _, err := client.CoreV1().Services("default").Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		await(fmt.Sprint(step.problems, " problems"), func() bool { return len(faults.Problems()) == step.problems })
	}
	if f := get().Finalizers; len(f) != 1 {
		t.Errorf("finalizers %v", f)
	}
	// A node more, then the Service is deleted: the API sets the time stamp, the finalizer keeps the object.
	if _, err := client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("new member", func() bool { return len(n.lb(t).BackendPools[0].Members) == 2 })
	s := get()
	now := metav1.Now()
	s.DeletionTimestamp = &now
	if _, err := client.CoreV1().Services("default").Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await("deletion", func() bool { return len(n.lb(t).Frontends) == 0 })
	await("event", event("whereami", "DeletedLoadBalancer", ""))
}
