package nftables

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/service"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
	"packetwalk.dev/internal/testing/goldentest"
)

// scenario is what goes into a golden file: config (the settings below as YAML) and objects.yaml (Services and EndpointSlices).
type scenario struct {
	config proxy.Config
	ports  []service.Port
}

func parseScenario(t testing.TB, in []txtar.File) (s scenario) {
	t.Helper()
	var c struct {
		Rules, ClusterCIDR, Interface, Node, Zone, NodeIP           string
		IPv6, MasqueradeAll, LocalhostNodePorts, TCPLiberal, NFAcct bool
		NodePortIPs, ServiceCIDRs                                   []string
	}
	if err := yaml.UnmarshalStrict(in[0].Data, &c); err != nil {
		t.Fatal(err)
	}
	s.config = proxy.Config{Family: service.IPv4, MasqueradeBit: 14, MasqueradeAll: c.MasqueradeAll}
	if c.IPv6 {
		s.config.Family = service.IPv6
	}
	s.config.Detector.Interface = c.Interface
	if c.ClusterCIDR != "" {
		s.config.Detector.CIDR = netip.MustParsePrefix(c.ClusterCIDR)
	}
	if c.NodeIP != "" {
		s.config.NodeIP = netip.MustParseAddr(c.NodeIP)
	}
	for _, ip := range c.NodePortIPs {
		s.config.NodePortIPs = append(s.config.NodePortIPs, netip.MustParseAddr(ip))
	}
	for _, cidr := range c.ServiceCIDRs {
		s.config.ServiceCIDRs = append(s.config.ServiceCIDRs, netip.MustParsePrefix(cidr))
	}
	var services []*corev1.Service
	var endpoints []*discoveryv1.EndpointSlice
	for doc := range strings.SplitSeq(string(in[1].Data), "\n---\n") {
		var err error
		if strings.Contains(doc, "kind: Service\n") {
			services = append(services, &corev1.Service{})
			err = yaml.UnmarshalStrict([]byte(doc), services[len(services)-1])
		} else {
			endpoints = append(endpoints, &discoveryv1.EndpointSlice{})
			err = yaml.UnmarshalStrict([]byte(doc), endpoints[len(endpoints)-1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.ports = service.Build(s.config.Family, service.Node{Name: c.Node, Zone: c.Zone}, services, endpoints)
	return s
}

// TestGoldenElements: what the table holds of each scenario, as nft writes elements, and which chains of fan-outs there are.
func TestGoldenElements(t *testing.T) {
	goldentest.Run(t, "testdata/*.txtar", 2, func(t *testing.T, in []txtar.File) []txtar.File {
		s := parseScenario(t, in)
		state := NewState(s.config, nil)
		state.Update(byService(s.ports))
		return []txtar.File{{Name: "table", Data: []byte(describe(state))}}
	})
}

// elementsOf returns all elements of a state.
func elementsOf(s *State) Elements {
	all := Elements{}
	sets, _ := s.frame()
	for i := range sets {
		if sets[i].Timeout == 0 {
			all[sets[i].Name] = map[string]Value{}
		}
	}
	c := s.Compare(Elements{})
	for i := range c.Steps {
		for _, add := range c.Steps[i].Add {
			v := Value{add.Element.Value, add.Element.Comment}
			if add.Set.Ranges {
				v.Value = add.Element.End
			}
			all[add.Set.Name][add.Element.Key] = v
		}
	}
	return all
}

// describe lists elements by set, and the chains of fan-outs.
func describe(s *State) string {
	sets, _ := s.frame()
	elements := elementsOf(s)
	var b strings.Builder
	for i := range sets {
		set := &sets[i]
		fmt.Fprintf(&b, "%s\n", set.Name)
		var lines []string
		for key, v := range elements[set.Name] {
			line := fields(key, set.Key)
			switch {
			case set.Ranges:
				line += " - " + fields(v.Value, set.Key)
			case set.Verdicts:
				line += " : goto " + v.Value
			case set.Data != nil:
				line += " : " + fields(v.Value, set.Data)
			}
			if v.Comment != "" {
				line += " # " + v.Comment
			}
			lines = append(lines, "\t"+line+"\n")
		}
		slices.Sort(lines)
		b.WriteString(strings.Join(lines, ""))
	}
	b.WriteString("chains\n")
	for _, name := range slices.Sorted(maps.Keys(s.named)) {
		fmt.Fprintf(&b, "\t%s\n", name)
	}
	return b.String()
}

func fields(value string, of []nf.Field) string {
	var texts []string
	for _, f := range of {
		b := []byte(value[:f.Len])
		value = value[(f.Len+3)&^3:]
		a, isAddress := netip.AddrFromSlice(b)
		switch {
		case f.Native:
			texts = append(texts, fmt.Sprint(binary.NativeEndian.Uint32(b)))
		case isAddress:
			texts = append(texts, a.String())
		case f.Len == 1:
			texts = append(texts, map[byte]string{6: "tcp", 17: "udp", 132: "sctp"}[b[0]])
		default:
			texts = append(texts, fmt.Sprint(binary.BigEndian.Uint16(b)))
		}
	}
	return strings.Join(texts, " . ")
}
