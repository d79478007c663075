package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/testing/eventually"
)

// serviceLimit is how long a Service may take until it is in force everywhere.
const serviceLimit = 2 * time.Minute

// WaitService waits until a Service that selects pods is in force on every path, and returns it. It waits for ready pods, for the front end
// in the API, for rules to these pods on each node, and for the load balancer's probes. An answer by one path shows nothing of the others.
func (w *World) WaitService(t *testing.T, namespace, name string) (service corev1.Service) {
	t.Helper()
	machines := w.machines(t)
	eventually.Succeeds(t, serviceLimit, func() error {
		service = corev1.Service{}
		out, err := w.Try(runLimit, "kubectl", "--name", w.Name, "get", "-o", "json", "service", "-n", namespace, name) // addons come after up
		if err == nil {
			err = json.Unmarshal([]byte(out), &service)
		}
		if err != nil {
			return err
		}
		if service.Spec.Type == corev1.ServiceTypeLoadBalancer && len(service.Status.LoadBalancer.Ingress) == 0 {
			return fmt.Errorf("service %s has no front end", name)
		}
		var selector []string
		for key, value := range service.Spec.Selector {
			selector = append(selector, key+"="+value)
		}
		pods := w.Pods(t, "-n", namespace, "-l", strings.Join(selector, ","))
		if len(pods) == 0 {
			return fmt.Errorf("service %s has no pod that is ready", name)
		}
		for _, node := range machines {
			if err := leadTo(service, pods, w.SSH(t, node, "iptables-save", "-t", "nat")); err != nil {
				return fmt.Errorf("node %s: %w", node, err)
			}
		}
		return w.isBalanced(service, pods)
	})
	return service
}

// Pods returns the pods that are ready and stay, by kubectl's arguments.
func (w *World) Pods(t *testing.T, args ...string) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	w.Get(t, &pods, append([]string{"pods"}, args...)...)
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		return !ready || p.DeletionTimestamp != nil
	})
}

// machines returns the nodes that have rules: all but the virtual node.
func (w *World) machines(t *testing.T) []string {
	t.Helper()
	return strings.Fields(w.Kubectl(t, "get", "nodes", "-l", "type!=virtual-kubelet", "-o", "jsonpath={.items[*].metadata.name}"))
}

// leadTo checks that a node's nat table, as iptables-save prints it, leads each port of a Service to just these pods, and knows its front
// end.
func leadTo(s corev1.Service, pods []corev1.Pod, saved string) error {
	var want []string
	for _, p := range pods {
		want = append(want, p.Status.PodIP)
	}
	slices.Sort(want)
	rules := rulesOf(saved)
	for _, port := range s.Spec.Ports {
		if got := rules.endpoints(s.Spec.ClusterIP, port); !slices.Equal(got, want) {
			return fmt.Errorf("the rules of %s:%d lead to %v, want %v", s.Spec.ClusterIP, port.Port, got, want)
		}
		for _, in := range s.Status.LoadBalancer.Ingress {
			if got, want := rules.policy(in.IP, port), s.Spec.ExternalTrafficPolicy; got != want {
				return fmt.Errorf("the rules of %s:%d are for traffic policy %q, want %s", in.IP, port.Port, got, want)
			}
		}
	}
	return nil
}

// natRules holds the rules of a nat table by their chains.
type natRules map[string][]string

func rulesOf(saved string) natRules {
	rules := natRules{}
	for line := range strings.Lines(saved) {
		if rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-A "); ok {
			chain, spec, _ := strings.Cut(rule, " ")
			rules[chain] = append(rules[chain], spec+" ")
		}
	}
	return rules
}

// chainsOf returns the chains that kube-proxy's rules for a port of an address jump to.
func (r natRules) chainsOf(address string, port corev1.ServicePort) (chains []string) {
	protocol := strings.ToLower(string(port.Protocol))
	for _, spec := range r["KUBE-SERVICES"] {
		if strings.Contains(spec, "-d "+address+"/32 -p "+protocol+" ") && strings.Contains(spec, fmt.Sprintf(" --dport %d ", port.Port)) {
			chains = append(chains, target(spec))
		}
	}
	return chains
}

var (
	jump        = regexp.MustCompile(` -[jg] (\S+)`)
	destination = regexp.MustCompile(` --to-destination ([0-9.]+):`)
)

func target(spec string) string {
	if m := jump.FindStringSubmatch(" " + spec); m != nil {
		return m[1]
	}
	return ""
}

// reached returns the rules of chains and of those that they jump to, as far as these are wanted.
func (r natRules) reached(chains []string, isWanted func(chain string) bool) (specs []string) {
	seen := map[string]bool{}
	for ; len(chains) > 0; chains = chains[1:] {
		if chain := chains[0]; !seen[chain] && isWanted(chain) {
			seen[chain] = true
			for _, spec := range r[chain] {
				specs = append(specs, spec)
				chains = append(chains, target(spec))
			}
		}
	}
	return specs
}

// endpoints returns the addresses that packets to a port of an address may be sent to, sorted.
func (r natRules) endpoints(address string, port corev1.ServicePort) []string {
	found := map[string]bool{}
	for _, spec := range r.reached(r.chainsOf(address, port), func(string) bool { return true }) {
		if m := destination.FindStringSubmatch(spec); m != nil {
			found[m[1]] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// policy returns the traffic policy of a front end by its rules, "" without any: with Cluster all senders get the mark to be masqueraded.
func (r natRules) policy(address string, port corev1.ServicePort) corev1.ServiceExternalTrafficPolicy {
	chains := r.chainsOf(address, port)
	if len(chains) == 0 {
		return ""
	}
	ofFrontend := func(chain string) bool {
		return strings.HasPrefix(chain, "KUBE-FW-") || strings.HasPrefix(chain, "KUBE-EXT-")
	}
	for _, spec := range r.reached(chains, ofFrontend) {
		if target(spec) == "KUBE-MARK-MASQ" && !strings.Contains(spec, "--src-type LOCAL ") {
			return corev1.ServiceExternalTrafficPolicyCluster
		}
	}
	return corev1.ServiceExternalTrafficPolicyLocal
}

// frontend holds a load balancing rule as "packetwalk status -o json" has it.
type frontend struct {
	Address string
	Port    int32
	Healthy []string
	Total   int
}

// isBalanced checks that the load balancer sends to the nodes that are to answer its probe: with traffic policy Local those of the pods,
// else all.
func (w *World) isBalanced(s corev1.Service, pods []corev1.Pod) error {
	if len(s.Status.LoadBalancer.Ingress) == 0 {
		return nil
	}
	var status struct{ Frontends []frontend }
	out, err := w.Try(time.Minute, "status", "--name", w.Name, "-o", "json") // exit status 1 for any problem of the lab
	if jsonErr := json.Unmarshal([]byte(out), &status); jsonErr != nil {
		return errors.Join(jsonErr, err)
	}
	local := map[string]bool{}
	for _, p := range pods {
		local[p.Spec.NodeName] = true
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		for _, port := range s.Spec.Ports {
			i := slices.IndexFunc(status.Frontends, func(f frontend) bool { return f.Address == in.IP && f.Port == port.Port })
			if i < 0 {
				return fmt.Errorf("the load balancer has no front end %s:%d", in.IP, port.Port)
			}
			f := status.Frontends[i]
			balanced := len(f.Healthy) == f.Total
			if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
				slices.Sort(f.Healthy)
				balanced = slices.Equal(f.Healthy, slices.Sorted(maps.Keys(local)))
			}
			if !balanced {
				return fmt.Errorf("%s:%d has back ends %v of %d", in.IP, port.Port, f.Healthy, f.Total)
			}
		}
	}
	return nil
}

// WaitFelix waits until felix lets the packets of a pod pass: it drops those to and from a pod that it does not know yet.
func (w *World) WaitFelix(t *testing.T, pod corev1.Pod) {
	t.Helper()
	link := regexp.MustCompile(` dev (\S+)`)
	eventually.Succeeds(t, serviceLimit, func() error {
		route := w.SSH(t, pod.Spec.NodeName, "ip", "route", "get", pod.Status.PodIP)
		m := link.FindStringSubmatch(route)
		if m == nil {
			return fmt.Errorf("no link of pod %s: %s", pod.Name, route)
		}
		rules := w.SSH(t, pod.Spec.NodeName, "iptables-save", "-t", "filter")
		for _, direction := range []string{" -i ", " -o "} {
			if !strings.Contains(rules, direction+m[1]+" ") {
				return fmt.Errorf("felix of %s has no rule for packets%s%s, those of pod %s", pod.Spec.NodeName, direction, m[1], pod.Name)
			}
		}
		return nil
	})
}
