package world

import (
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
)

// TestLeadTo reads the rules of service proxies of several versions, and finds what differs from a Service.
func TestLeadTo(t *testing.T) {
	const cluster, local = corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal
	for name, c := range map[string]struct {
		file, address, front string
		policy               corev1.ServiceExternalTrafficPolicy
		pods                 []string
	}{
		"Cluster, 1.11":    {"a5-azure-cni-1.11.txtar", "10.0.159.58", "51.144.176.251", cluster, []string{"10.13.76.26", "10.13.76.7"}},
		"Local, 1.11":      {"a12-local-1.11.txtar", "10.0.12.96", "13.93.66.174", local, []string{"10.13.76.15", "10.13.76.30"}},
		"Cluster, current": {"azure-cni-current.txtar", "10.0.159.58", "51.144.176.251", cluster, []string{"10.13.76.26", "10.13.76.7"}},
		"Local, current":   {"corners-current.txtar", "10.0.1.1", "203.0.113.10", local, []string{"10.1.0.1", "10.1.1.1"}},
		"ranges, current":  {"corners-current.txtar", "10.0.1.3", "203.0.113.12", cluster, []string{"10.1.0.3", "10.1.1.3"}},
	} {
		t.Run(name, func(t *testing.T) {
			archive, err := txtar.ParseFile(filepath.Join("../../internal/node/proxy/iptables/testdata", c.file))
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == "rules" })
			if i < 0 {
				t.Fatal("no rules")
			}
			saved := string(archive.Files[i].Data)
			check := func(what string, wrong bool, policy corev1.ServiceExternalTrafficPolicy, front string, ips ...string) {
				t.Helper()
				s := corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: c.address, ExternalTrafficPolicy: policy,
					Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}}
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: front}}
				var pods []corev1.Pod
				for _, ip := range ips {
					pods = append(pods, corev1.Pod{Status: corev1.PodStatus{PodIP: ip}})
				}
				if err := leadTo(s, pods, saved); (err != nil) != wrong {
					t.Errorf("%s: %v", what, err)
				}
			}
			other := map[corev1.ServiceExternalTrafficPolicy]corev1.ServiceExternalTrafficPolicy{cluster: local, local: cluster}
			check("as it is", false, c.policy, c.front, c.pods...)
			check("a pod more", true, c.policy, c.front, append(slices.Clone(c.pods), "10.1.2.3")...)
			check("a pod less", true, c.policy, c.front, c.pods[1:]...)
			check("another policy", true, other[c.policy], c.front, c.pods...)
			check("another front end", true, c.policy, "203.0.113.99", c.pods...)
		})
	}
}
