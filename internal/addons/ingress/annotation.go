package ingress

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// The annotations of ingress-nginx that are understood; every other one is a Problem.
const (
	annotations        = "nginx.ingress.kubernetes.io/"
	annotationRedirect = annotations + "ssl-redirect"       // default true: HTTP to HTTPS where the host has a certificate
	annotationForce    = annotations + "force-ssl-redirect" // also where it has none
	annotationProtocol = annotations + "backend-protocol"   // HTTP only
)

// annotations says what of an Ingress's annotations has no effect.
func (b *builder) annotations(i *networkingv1.Ingress) {
	for _, name := range slices.Sorted(maps.Keys(i.Annotations)) {
		value := i.Annotations[name]
		field := "metadata.annotations[" + name + "]"
		switch {
		case name == annotationRedirect || name == annotationForce:
			if _, err := strconv.ParseBool(value); err != nil {
				b.problem(i, field, "%q is neither true nor false", value)
			}
		case name == annotationProtocol && strings.EqualFold(value, "HTTP"):
		case strings.HasPrefix(name, annotations):
			b.problem(i, field, "not supported here, and without effect")
		}
	}
}

// redirects reports whether clients of a host's route are sent from HTTP to HTTPS.
func (b *builder) redirects(i *networkingv1.Ingress, host string) bool {
	if force, err := strconv.ParseBool(i.Annotations[annotationForce]); err == nil && force {
		return true
	}
	if redirect, err := strconv.ParseBool(i.Annotations[annotationRedirect]); err == nil && !redirect {
		return false
	}
	h := b.table.Hosts[strings.ToLower(host)]
	return h != nil && h.Certificate != nil
}
