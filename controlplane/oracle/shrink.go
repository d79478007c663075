package oracle

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Shrink drops steps, objects and parts of objects while the two still disagree, for up to tries runs, and returns the smallest case found
// with its disagreement.
func Shrink(ctx context.Context, dir string, c Case, d *Disagreement, tries int) (Case, *Disagreement) {
	c = c.Clone()
	c.Steps = c.Steps[:d.Step+1]
	for again := true; again && tries > 0; {
		again = false
		for _, cut := range cuts(c) {
			smaller := c.Clone()
			if tries == 0 || !cut(&smaller) {
				continue
			}
			for i := range smaller.Steps {
				agree(&smaller.Steps[i])
			}
			tries--
			if found, err := Run(ctx, dir, smaller, NewTally()); err == nil && found != nil {
				smaller.Steps = smaller.Steps[:found.Step+1]
				c, d, again = smaller, found, true
			}
		}
	}
	return c, d
}

// cuts returns the ways to make a case smaller, big ones first. A cut returns false when it finds nothing to cut any more.
func cuts(c Case) []func(*Case) bool {
	var out []func(*Case) bool
	for i := len(c.Steps) - 2; i >= 0; i-- {
		out = append(out, func(c *Case) bool {
			if i >= len(c.Steps)-1 {
				return false
			}
			c.Steps = slices.Delete(c.Steps, i, i+1)
			return true
		})
	}
	services, endpointSlices := map[string]bool{}, map[string]bool{}
	for i := range c.Steps {
		for key := range c.Steps[i].Services {
			services[key] = true
		}
		for key := range c.Steps[i].Slices {
			endpointSlices[key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(services)) {
		out = append(out, onWorlds(func(w *World) bool { return dropKey(w.Services, key) }))
	}
	for _, key := range slices.Sorted(maps.Keys(endpointSlices)) {
		out = append(out, onWorlds(func(w *World) bool { return dropKey(w.Slices, key) }))
	}
	for _, key := range slices.Sorted(maps.Keys(services)) {
		for _, cut := range serviceCuts {
			out = append(out, onWorlds(func(w *World) bool { s := w.Services[key]; return s != nil && cut(s) }))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(endpointSlices)) {
		for _, cut := range sliceCuts {
			out = append(out, onWorlds(func(w *World) bool { s := w.Slices[key]; return s != nil && cut(s) }))
		}
	}
	return append(out,
		onWorlds(func(w *World) bool { old := w.Zone; w.Zone = ""; return old != "" }),
		onWorlds(func(w *World) bool { old := w.Full; w.Full = false; return old }),
		func(c *Case) bool { old := c.Settings.MasqueradeAll; c.Settings.MasqueradeAll = false; return old },
		func(c *Case) bool {
			old := c.Settings.LocalhostNodePorts
			c.Settings.LocalhostNodePorts = false
			return old
		},
		func(c *Case) bool { old := c.Settings.Landing; c.Settings.Landing = false; return old },
		func(c *Case) bool { old := c.Settings.ServiceCIDRs; c.Settings.ServiceCIDRs = nil; return old != nil },
		func(c *Case) bool { old := c.Settings.TCPLiberal; c.Settings.TCPLiberal = false; return old },
		func(c *Case) bool { old := c.Settings.ClusterCIDR; c.Settings.ClusterCIDR = ""; return old != "" },
		func(c *Case) bool { old := c.Settings.PodInterface; c.Settings.PodInterface = ""; return old != "" },
		func(c *Case) bool { old := c.Settings.MasqueradeBit; c.Settings.MasqueradeBit = 14; return old != 14 },
		func(c *Case) bool {
			old := c.Settings.NodeAddresses
			c.Settings.NodeAddresses, c.Settings.NodePortAddresses = nil, nil
			return old != nil
		})
}

// onWorlds cuts the same in every step.
func onWorlds(cut func(*World) bool) func(*Case) bool {
	return func(c *Case) bool {
		done := false
		for i := range c.Steps {
			done = cut(&c.Steps[i]) || done
		}
		return done
	}
}

func dropKey[V any](m map[string]V, key string) bool {
	_, ok := m[key]
	delete(m, key)
	return ok
}

func dropFirst[E any](s *[]E) bool {
	if len(*s) == 0 {
		return false
	}
	*s = (*s)[1:]
	return true
}

func dropLast[E any](s *[]E) bool {
	if len(*s) == 0 {
		return false
	}
	*s = (*s)[:len(*s)-1]
	return true
}

var serviceCuts = []func(*corev1.Service) bool{
	func(s *corev1.Service) bool { return len(s.Spec.Ports) > 1 && dropFirst(&s.Spec.Ports) },
	func(s *corev1.Service) bool { return len(s.Spec.Ports) > 1 && dropLast(&s.Spec.Ports) },
	func(s *corev1.Service) bool { return dropFirst(&s.Spec.ExternalIPs) },
	func(s *corev1.Service) bool { return dropLast(&s.Spec.ExternalIPs) },
	func(s *corev1.Service) bool { return dropFirst(&s.Spec.LoadBalancerSourceRanges) },
	func(s *corev1.Service) bool { return dropLast(&s.Spec.LoadBalancerSourceRanges) },
	func(s *corev1.Service) bool { return dropFirst(&s.Status.LoadBalancer.Ingress) },
	func(s *corev1.Service) bool { return dropLast(&s.Status.LoadBalancer.Ingress) },
	func(s *corev1.Service) bool { return len(s.Annotations) > 0 && clearMap(&s.Annotations) },
	func(s *corev1.Service) bool {
		old := s.Spec.SessionAffinity
		s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
		return old == corev1.ServiceAffinityClientIP
	},
}

var sliceCuts = []func(*discoveryv1.EndpointSlice) bool{
	func(s *discoveryv1.EndpointSlice) bool { return dropFirst(&s.Endpoints) },
	func(s *discoveryv1.EndpointSlice) bool { return dropLast(&s.Endpoints) },
	func(s *discoveryv1.EndpointSlice) bool { return dropFirst(&s.Ports) },
	func(s *discoveryv1.EndpointSlice) bool { return dropLast(&s.Ports) },
	func(s *discoveryv1.EndpointSlice) bool { return len(s.Annotations) > 0 && clearMap(&s.Annotations) },
	func(s *discoveryv1.EndpointSlice) bool {
		cut := false
		for i := range s.Endpoints {
			cut = cut || s.Endpoints[i].Hints != nil
			s.Endpoints[i].Hints = nil
		}
		return cut
	},
}

func clearMap(m *map[string]string) bool {
	*m = nil
	return true
}
