package service

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// BenchmarkOf is a service with 2,000 endpoints in 20 slices.
func BenchmarkOf(b *testing.B) {
	s := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 80}}}}
	name, port, is := "", int32(80), true
	var all []*discoveryv1.EndpointSlice
	for i := range 20 {
		slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
		slice.Ports = []discoveryv1.EndpointPort{{Name: &name, Port: &port}}
		for j := range 100 {
			k, node := (i*100+j)*37%2000, fmt.Sprintf("node-%d", j)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.13.%d.%d", k/250, k%250)},
				NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &is, Serving: &is}})
		}
		all = append(all, slice)
	}
	b.ReportAllocs()
	for b.Loop() {
		if ports := Of(IPv4, Node{Name: "node-1"}, s, all); len(ports[0].ForCluster) != 2000 {
			b.Fatal(len(ports[0].ForCluster))
		}
	}
}
