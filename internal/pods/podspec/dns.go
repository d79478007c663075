package podspec

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A Resolver is what pods find names with.
type Resolver struct {
	Cluster netip.Addr // the cluster's DNS service; not valid: there is none
	Domain  string     // the cluster's domain
}

// DNS returns the lines of a pod's /etc/resolv.conf by its dnsPolicy and dnsConfig (Kubernetes, "DNS for Services and Pods").
func (r Resolver) DNS(pod *corev1.Pod) (servers, search, options []string) {
	policy := pod.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork || policy == "" || !r.Cluster.IsValid() && policy != corev1.DNSNone {
		policy = corev1.DNSDefault
	}
	switch policy {
	case corev1.DNSNone, corev1.DNSDefault:
	default:
		servers = []string{r.Cluster.String()}
		search = []string{pod.Namespace + ".svc." + r.Domain, "svc." + r.Domain, r.Domain}
		options = []string{"ndots:5"}
	}
	c := pod.Spec.DNSConfig
	if c == nil {
		return servers, search, options
	}
	for _, o := range c.Options {
		options = slices.DeleteFunc(options, func(have string) bool { return have == o.Name || strings.HasPrefix(have, o.Name+":") })
		if o.Value != nil && *o.Value != "" {
			o.Name += ":" + *o.Value
		}
		options = append(options, o.Name)
	}
	return unique(append(servers, c.Nameservers...)), unique(append(search, c.Searches...)), options
}

func unique(list []string) (out []string) {
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
