package oracle

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netutils "k8s.io/utils/net"
)

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
