package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// dropProblems returns what drops the load balancer's probes of back ends, and, where a network policy engine runs, pods' DNS requests: by a
// walk of each.
func dropProblems(ctx context.Context, name string, st *lab.Status) []string {
	hasProbes := slices.ContainsFunc(st.Frontends, func(f lab.Frontend) bool { return len(f.Probed) > 0 })
	hasPolicies := slices.ContainsFunc(st.Nodes, func(n lab.Node) bool { return n.CalicoFelix != nil })
	if !hasProbes && !hasPolicies {
		return nil
	}
	world, err := openLab(ctx, name)
	if err != nil {
		return []string{fmt.Sprintf("what drops probes and DNS requests is unknown: %v", err)}
	}
	defer func() { _ = world.close() }()
	problems := world.probeDrops(st.Frontends)
	if hasPolicies {
		problems = append(problems, world.dnsDrops()...)
	}
	return problems
}

// probeDrops returns what drops the load balancer's probes of the back ends whose probes fail, or why that is unknown.
func (w *world) probeDrops(frontends []lab.Frontend) (problems []string) {
	for _, f := range frontends {
		for _, machine := range slices.Sorted(maps.Keys(f.Probed)) {
			to := f.Probed[machine]
			result, err := walk.Walk(w, walk.Request{Host: armview.Host, OneWay: true, Packet: packet.Packet{Tuple: packet.Tuple{
				Protocol: packet.TCP, Source: vnet.ProbeSource, Destination: to.Addr(), DestinationPort: packet.Port{Number: to.Port()},
			}, TCPFlags: packet.SYN}})
			probe := fmt.Sprintf("the load balancer's probe of %s at %s", machine, to)
			if err != nil {
				problems = append(problems, fmt.Sprintf("%s: why it fails is unknown: %v", probe, err))
				continue
			}
			if by := explain.Drop(result, owners(w, hostsOf(result))); by != "" {
				problems = append(problems, probe+": "+by)
			}
		}
	}
	slices.Sort(problems)
	return slices.Compact(problems)
}

const (
	// mostDNSWalks is how many pods' DNS requests are walked: of pods with the same namespace and labels one.
	mostDNSWalks = 20
	// mostDNSProblems is how many of them are told one by one.
	mostDNSProblems = 4
)

// dnsDrops returns what drops pods' requests to the cluster's DNS.
func (w *world) dnsDrops() (problems []string) {
	seen := map[string]bool{}
	objects := w.Objects()
	for i := range objects.Pods {
		p := &objects.Pods[i]
		like := fmt.Sprint(p.Namespace, p.Labels)
		if p.HostNetwork || len(p.IPs) == 0 || seen[like] || len(seen) == mostDNSWalks {
			continue
		}
		seen[like] = true
		pod := endpoint.End{Kind: endpoint.Pod, Namespace: p.Namespace, Name: p.Name}
		if by := w.dnsDrop(pod); by != "" {
			problems = append(problems, fmt.Sprintf("DNS requests of %s: %s", pod, by))
		}
	}
	if n := len(problems) - mostDNSProblems; n > 0 {
		problems = append(problems[:mostDNSProblems], fmt.Sprintf("DNS requests of %d more pods are dropped", n))
	}
	return problems
}

// dnsDrop returns where and by what the requests of an end to the cluster's DNS are dropped; "" where they are not, or that is unknown.
func (w *world) dnsDrop(from endpoint.End) string {
	dns := endpoint.End{Kind: endpoint.Service, Namespace: "kube-system", Name: "kube-dns", Port: 53}
	read, err := endpoint.Read(endpoint.World{Source: w.Source, Unread: w.unread}, from, dns, packet.UDP)
	if err != nil {
		return ""
	}
	read.OneWay = true
	result, err := walk.Walk(w, read.Request)
	if err != nil {
		return ""
	}
	return explain.Drop(result, owners(w, hostsOf(result)))
}

// dropNotes returns what a walk does not come to itself: why a front end has no healthy back end, why a name is not resolved, and that a
// network policy engine does not follow its policies.
func (w *world) dropNotes(req *walk.Request, from, to endpoint.End) (notes []string) {
	if to.Kind == endpoint.DNSName && from.Kind == endpoint.Pod && w.more == nil {
		if by := w.dnsDrop(from); by != "" {
			notes = append(notes, fmt.Sprintf("%s does not resolve %s: its DNS request is %s", from, to.Name, by))
		}
	}
	if w.status == nil {
		return notes
	}
	st := w.status()
	for _, f := range st.Frontends {
		if f.Address == req.Packet.Destination.String() && f.Port == req.Packet.DestinationPort.Number && len(f.Healthy) == 0 {
			for _, by := range w.probeDrops([]lab.Frontend{f}) {
				notes = append(notes, "no healthy back end: "+by)
			}
		}
	}
	for _, p := range st.Problems {
		if strings.HasPrefix(p, "calico-felix ") {
			notes = append(notes, p)
		}
	}
	return notes
}
