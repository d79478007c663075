package oracle

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

// NodeName is the node that both proxies run on.
const NodeName = "node-0"

// Settings are what both proxies are started with.
type Settings struct {
	IPv6 bool `json:"ipv6,omitempty"`
	// ClusterCIDR or PodInterface (a name, or a prefix and "+") tells traffic of local pods; neither: none is told.
	ClusterCIDR        string   `json:"clusterCIDR,omitempty"`
	PodInterface       string   `json:"podInterface,omitempty"`
	MasqueradeBit      int      `json:"masqueradeBit"`
	MasqueradeAll      bool     `json:"masqueradeAll,omitempty"`
	LocalhostNodePorts bool     `json:"localhostNodePorts,omitempty"`
	TCPLiberal         bool     `json:"tcpLiberal,omitempty"`
	NodeIP             string   `json:"nodeIP"`
	NodeAddresses      []string `json:"nodeAddresses,omitempty"` // with their lengths, on the node's loopback link
	NodePortAddresses  []string `json:"nodePortAddresses,omitempty"`
	// ServiceCIDRs are known to the nftables modes only.
	ServiceCIDRs []string `json:"serviceCIDRs,omitempty"`
	// Landing sends real flows through the tables of the nftables modes, after steps that are Full.
	Landing bool `json:"landing,omitempty"`
}

// World is the state of the API at one time. Every object is one that the API server accepts, with its defaults filled in.
//
// Three things that the API would allow are left out, because upstream's own answer is not fixed: an endpoint that stands in two slices of
// a service in different states (unless one copy alone is local), as upstream takes the copy that a Go map yields last; a slice whose label
// moves it to another service, as upstream forgets to take its endpoints from the first; and more than 1000 endpoints that come and go, as
// upstream then rewrites the comments only of services that change.
type World struct {
	Zone     string                                `json:"zone,omitempty"` // of the node
	Services map[string]*corev1.Service            `json:"services,omitempty"`
	Slices   map[string]*discoveryv1.EndpointSlice `json:"slices,omitempty"`
	// Full makes both proxies write all their rules anew after this step; what they wrote before must stay.
	Full bool `json:"full,omitempty"`
	// Draw chooses the packets that are walked.
	Draw uint32 `json:"draw,omitempty"`
}

// Case is a world's history, as it is compared, shrunk and kept.
type Case struct {
	Settings Settings `json:"settings"`
	Steps    []World  `json:"steps"`
}

// YAML returns the case as a file of testdata holds it.
func (c Case) YAML() []byte {
	text, err := yaml.Marshal(c)
	if err != nil {
		panic(err) // plain values
	}
	return text
}

// ParseCase reads what YAML writes.
func ParseCase(text []byte) (Case, error) {
	var c Case
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return Case{}, fmt.Errorf("read case: %w", err)
	}
	return c, nil
}

// Clone returns a copy that shares nothing.
func (w World) Clone() World {
	out := World{Zone: w.Zone, Full: w.Full, Draw: w.Draw, Services: make(map[string]*corev1.Service, len(w.Services)),
		Slices: make(map[string]*discoveryv1.EndpointSlice, len(w.Slices))}
	for key, s := range w.Services {
		out.Services[key] = s.DeepCopy()
	}
	for key, s := range w.Slices {
		out.Slices[key] = s.DeepCopy()
	}
	return out
}

// Clone returns a copy that shares nothing.
func (c Case) Clone() Case {
	out := Case{Settings: c.Settings, Steps: make([]World, len(c.Steps))}
	for i := range c.Steps {
		out.Steps[i] = c.Steps[i].Clone()
	}
	return out
}

// watched returns the world as both proxies' informers deliver it: without headless services, and without what carries the label of another
// service proxy or of headless services (cmd/kube-proxy/app/server.go; our internal/node/kube asks for the same).
func (w World) watched() World {
	out := World{Zone: w.Zone, Full: w.Full, Draw: w.Draw, Services: maps.Clone(w.Services), Slices: maps.Clone(w.Slices)}
	foreign := func(labels map[string]string) bool {
		_, named := labels[labelProxyName]
		_, headless := labels[corev1.IsHeadlessService]
		return named || headless
	}
	maps.DeleteFunc(out.Services, func(_ string, s *corev1.Service) bool {
		return foreign(s.Labels) || s.Spec.ClusterIP == corev1.ClusterIPNone
	})
	maps.DeleteFunc(out.Slices, func(_ string, s *discoveryv1.EndpointSlice) bool { return foreign(s.Labels) })
	return out
}

// short returns the world with shorter names of namespaces and services. Of a service port without endpoints kube-proxy's nftables mode
// writes the whole name as a comment, and nft 1.0.6 refuses its whole transaction if that has more than 128 characters.
func (w World) short() World {
	out := w.Clone()
	cut := func(name *string) { *name = strings.TrimSuffix(*name, strings.Repeat((*name)[len(*name)-1:], 60)) }
	clear(out.Services)
	for _, s := range w.Clone().Services {
		cut(&s.Name)
		cut(&s.Namespace)
		out.Services[s.Namespace+"/"+s.Name] = s
	}
	for _, s := range out.Slices {
		cut(&s.Namespace)
		owner := s.Labels[discoveryv1.LabelServiceName]
		cut(&owner)
		s.Labels[discoveryv1.LabelServiceName] = owner
	}
	return out
}

const labelProxyName = "service.kubernetes.io/service-proxy-name"

// slicesOf returns the keys of a service's slices, sorted.
func (w World) slicesOf(service string) []string {
	var keys []string
	namespace, name, _ := strings.Cut(service, "/")
	for _, key := range slices.Sorted(maps.Keys(w.Slices)) {
		s := w.Slices[key]
		if s.Namespace == namespace && s.Labels[discoveryv1.LabelServiceName] == name {
			keys = append(keys, key)
		}
	}
	return keys
}
