package cloud

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Prefixes of the annotations that cloud-provider-azure reads on Services of type LoadBalancer (its page "Azure LoadBalancer").
var annotationPrefixes = []string{"service.beta.kubernetes.io/azure-", "service.beta.kubernetes.io/port_"}

// effective are those that have an effect here.
var effective = []string{annotationInternal, annotationIdle, annotationAllowedRanges, annotationAllowedTags, annotationDenyOthers}

// IgnoredAnnotations returns a Service's annotations for Azure's load balancer that have no effect here, sorted.
func IgnoredAnnotations(s *v1.Service) []string {
	if s.Spec.Type != v1.ServiceTypeLoadBalancer {
		return nil
	}
	var all []string
	for name := range s.Annotations {
		known := slices.ContainsFunc(annotationPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if known && !slices.Contains(effective, name) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}
