package policies

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"packetwalk.dev/test/agree"
)

// object is an object of the API.
type object = map[string]any

// What pods have. Policies choose by it.
var (
	namespaces = []string{"blue", "green", "red"}
	apps       = []string{"web", "db", "cache"}
	tiers      = []string{"front", "back"}
	ports      = []object{
		{"name": "http", "containerPort": 80}, {"name": "alt", "containerPort": 8080}, {"name": "pg", "containerPort": 5432},
		{"name": "dns", "containerPort": 53, "protocol": "UDP"},
	}
)

// Addresses that ipBlocks are made of: the pods' and nodes' subnet, the VM's, and what the internet has.
var ranges = []string{"10.13.76.0/24", "10.13.76.0/26", "10.13.76.32/27", "10.13.1.0/24", "10.13.0.0/16", "203.0.113.0/24", "198.51.100.0/24", "0.0.0.0/0"}

// random makes objects and pairs of one seed.
type random struct{ *rand.Rand }

func (r random) one(list []string) string { return list[r.IntN(len(list))] }
func (r random) odds(p float64) bool      { return r.Float64() < p }
func (r random) some(n int, f func() any) []any { // 0 to n-1 of what f makes
	list := []any{}
	for range r.IntN(n) {
		list = append(list, f())
	}
	return list
}

// workloads returns the pods, which have the same place in every run, and the Services before them. A Service has one endpoint: with two,
// of which policies let probes to one alone, the load balancer's back ends would be up and down by chance.
func workloads(nodes []string) (list []object) {
	for i, ns := range namespaces {
		list = append(list, object{"apiVersion": "v1", "kind": "Namespace",
			"metadata": object{"name": ns, "labels": object{"team": ns, "kind": tiers[i%2]}}})
		for j, app := range apps {
			for k, tier := range tiers {
				list = append(list, object{"apiVersion": "v1", "kind": "Pod",
					"metadata": object{"name": app + "-" + tier, "namespace": ns, "labels": object{"app": app, "tier": tier}},
					"spec": object{"nodeName": nodes[(i+j+k)%len(nodes)], "tolerations": []object{{"operator": "Exists"}},
						"containers": []object{{"name": "c", "image": "any", "ports": ports}}}})
			}
		}
		list = append(list, object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": "web", "namespace": ns},
			"spec": object{"type": "LoadBalancer", "selector": object{"app": "web", "tier": "front"}, "ports": []object{{"port": 80}}}})
	}
	return list
}

// policies returns a round's policies: of Kubernetes, and of Calico, on pods and on a node's interface.
func (r random) policies(nodes []string) (list []object) {
	if r.odds(0.4) {
		list = r.host(r.one(nodes))
	}
	for i := range 3 + r.IntN(5) {
		list = append(list, object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
			"metadata": object{"name": fmt.Sprintf("p%d", i), "namespace": r.one(namespaces)}, "spec": r.kubernetes()})
	}
	for i := range r.IntN(4) {
		list = append(list, object{"apiVersion": "crd.projectcalico.org/v1", "kind": "NetworkPolicy",
			"metadata": object{"name": fmt.Sprintf("default.c%d", i), "namespace": r.one(namespaces)}, "spec": r.calico("default")})
	}
	for i := range r.IntN(3) {
		list = append(list, object{"apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkPolicy",
			"metadata": object{"name": fmt.Sprintf("default.g%d", i)}, "spec": r.calico("default")})
	}
	if r.odds(0.5) {
		list = append(list, object{"apiVersion": "crd.projectcalico.org/v1", "kind": "Tier", "metadata": object{"name": "first"},
			"spec": object{"order": 10, "defaultAction": r.one([]string{"Deny", "Pass"})}})
		list = append(list, object{"apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkPolicy",
			"metadata": object{"name": "first.g"}, "spec": r.calico("first")})
	}
	return append(list, object{"apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkSet",
		"metadata": object{"name": "outside", "labels": object{"set": "outside"}},
		"spec":     object{"nets": []string{r.one(ranges[:7]), r.one(ranges[:7])}}})
}

// host returns policies on a node's interface. A last one lets through what the node needs, and others speak of ports that it does not
// need.
func (r random) host(node string) []object {
	named := func(kind, name string, spec object) object {
		return object{"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": object{"name": name, "labels": object{"host": "yes"}}, "spec": spec}
	}
	allow := []object{{"action": "Allow"}}
	list := []object{
		named("HostEndpoint", "h", object{"node": node, "interfaceName": "eth0"}),
		named("GlobalNetworkPolicy", "default.h-rest", object{"tier": "default", "order": 5000, "selector": "has(host)", "applyOnForward": r.odds(0.5),
			"types": []string{"Ingress", "Egress"}, "ingress": allow, "egress": allow}),
	}
	rule := func() any {
		protocol := r.one([]string{"TCP", "UDP"})
		port := map[string]int{"TCP": []int{80, 8080, 5432}[r.IntN(3)], "UDP": 53}[protocol]
		return object{"action": r.one([]string{"Allow", "Deny", "Log"}), "protocol": protocol, "destination": object{"ports": []int{port}},
			"source": object{"nets": []string{r.one(ranges)}}}
	}
	for i := range 1 + r.IntN(3) {
		spec := object{"tier": "default", "order": r.IntN(2000), "selector": "has(host)", "types": r.types()}
		switch r.IntN(4) {
		case 0:
			spec["applyOnForward"] = true
		case 1:
			spec["applyOnForward"], spec["preDNAT"], spec["types"] = true, true, []string{"Ingress"}
		case 2:
			spec["applyOnForward"], spec["doNotTrack"] = true, true
		}
		for _, direction := range spec["types"].([]string) {
			spec[strings.ToLower(direction)] = r.some(3, rule)
		}
		list = append(list, named("GlobalNetworkPolicy", fmt.Sprintf("default.h%d", i), spec))
	}
	return list
}

func (r random) selector() object {
	labels := object{}
	if r.odds(0.5) {
		labels["app"] = r.one(apps)
	}
	if r.odds(0.3) {
		labels["tier"] = r.one(tiers)
	}
	if r.odds(0.2) {
		operator := r.one([]string{"In", "NotIn"})
		return object{"matchExpressions": []object{{"key": "app", "operator": operator, "values": []string{r.one(apps), r.one(apps)}}}}
	}
	return object{"matchLabels": labels}
}

func (r random) types() []string {
	return [][]string{{"Ingress"}, {"Egress"}, {"Ingress", "Egress"}}[r.IntN(3)]
}

// kubernetes returns the spec of a NetworkPolicy of Kubernetes.
func (r random) kubernetes() object {
	peer := func() any {
		switch r.IntN(4) {
		case 0:
			block := object{"cidr": r.one(ranges)}
			if r.odds(0.3) {
				block = object{"cidr": "10.13.0.0/16", "except": []string{r.one(ranges[:4])}}
			}
			return object{"ipBlock": block}
		case 1:
			return object{"namespaceSelector": object{"matchLabels": object{"team": r.one(namespaces)}}}
		case 2:
			return object{"namespaceSelector": object{"matchLabels": object{"kind": r.one(tiers)}}, "podSelector": r.selector()}
		}
		return object{"podSelector": r.selector()}
	}
	port := func() any {
		switch r.IntN(5) {
		case 0:
			return object{"port": "http"}
		case 1:
			return object{"port": 53, "protocol": "UDP"}
		case 2:
			return object{"port": 5000, "endPort": 8100}
		case 3:
			return object{"protocol": "UDP"}
		}
		return object{"port": []int{80, 8080, 5432}[r.IntN(3)]}
	}
	rule := func(peers string) func() any {
		return func() any {
			rule := object{}
			if list := r.some(4, peer); len(list) > 0 {
				rule[peers] = list
			}
			if list := r.some(3, port); len(list) > 0 {
				rule["ports"] = list
			}
			return rule
		}
	}
	spec := object{"podSelector": r.selector(), "policyTypes": r.types()}
	for _, direction := range spec["policyTypes"].([]string) {
		if direction == "Ingress" {
			spec["ingress"] = r.some(4, rule("from"))
		} else {
			spec["egress"] = r.some(4, rule("to"))
		}
	}
	return spec
}

// selectors are Calico's.
var selectors = []string{
	"all()", "app == 'web'", "app != 'db'", "tier == 'front' && app in {'web', 'cache'}", "has(tier)", "!has(app)", "projectcalico.org/namespace == 'blue'",
}

// calico returns the spec of a policy of Calico's.
func (r random) calico(tier string) object {
	end := func() object {
		e := object{}
		switch r.IntN(5) {
		case 0:
			e["nets"] = []string{r.one(ranges), r.one(ranges)}
		case 1:
			e["notNets"] = []string{r.one(ranges[:7])}
		case 2:
			e["selector"] = r.one(append(selectors, "set == 'outside'"))
		case 3:
			e["notSelector"] = r.one(selectors[1:])
		}
		return e
	}
	rule := func() any {
		rule := object{"action": r.one([]string{"Allow", "Allow", "Allow", "Deny", "Pass", "Log"}), "source": end()}
		to := end()
		if r.odds(0.5) {
			rule["protocol"] = r.one([]string{"TCP", "UDP"})
			if r.odds(0.6) {
				to[r.one([]string{"ports", "notPorts"})] = []any{[]any{80, "8000:8100", 5432, "dns", 53}[r.IntN(5)]}
			}
		} else if r.odds(0.2) {
			rule["protocol"], rule["icmp"] = "ICMP", object{"type": 8}
		}
		rule["destination"] = to
		return rule
	}
	return object{"tier": tier, "order": r.IntN(2000), "selector": r.one(selectors), "types": r.types(),
		"ingress": r.some(4, rule), "egress": r.some(4, rule)}
}

// pair returns a walk from anywhere to anywhere.
func (r random) pair(nodes []string) agree.Pair {
	pod := func() string { return r.one(namespaces) + "/" + r.one(apps) + "-" + r.one(tiers) }
	p := agree.Pair{From: "pod/" + pod(), Proto: "tcp"}
	switch r.IntN(10) {
	case 0:
		p.From = "internet/client"
	case 1:
		p.From = "node/" + r.one(nodes)
	case 2:
		p.From = "vm/testvm"
	}
	switch r.IntN(8) {
	case 0:
		p.To = "svc/" + r.one(namespaces) + "/web"
	case 1:
		p.To = "vm/testvm:80"
	case 2:
		p.To = "internet/ifconfig.co:80"
	case 3:
		p.To, p.Proto = "pod/"+pod()+":53", "udp"
	case 4:
		p.To, p.Proto = "pod/"+pod(), "icmp"
	default:
		p.To = fmt.Sprintf("pod/%s:%d", pod(), []int{80, 8080, 5432, 81}[r.IntN(4)])
	}
	if p.From == "internet/client" {
		p.To, p.Proto = "svc/"+r.one(namespaces)+"/web", "tcp"
	}
	return p
}
