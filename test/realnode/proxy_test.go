package realnode

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/test/world"
)

// proxyStep is a service proxy that the cluster is changed to, and what rules of services a node has then.
type proxyStep struct {
	name, spec       string
	iptables         bool   // chains of services in iptables' nat table
	table            string // of nftables, whose services it has
	kubeProxy, works bool
}

var proxySteps = []proxyStep{
	{name: "kube-proxy", spec: "{implementation: kube-proxy}", iptables: true, kubeProxy: true, works: true},
	{name: "kube-proxy with nftables", spec: "{implementation: kube-proxy, backend: nftables}", table: "kube-proxy", kubeProxy: true, works: true},
	{name: "packetwalk with nftables", spec: "{backend: nftables}", table: nftables.TableName, works: true},
	{name: "packetwalk again", spec: "{}", iptables: true, works: true},
	{name: "none", spec: "{implementation: none}"},
	{name: "packetwalk after none", spec: "{}", iptables: true, works: true},
}

// proxies: the service proxy changes while everything runs, on each node: services answer by whoever it is, also those that are
// new, nothing is left of who it was, and the ip-masq-agent goes on.
func proxies(t *testing.T, w *world.World) {
	for i, step := range proxySteps {
		t.Run(step.name, func(t *testing.T) {
			up(t, w, config+"  serviceProxy: "+step.spec+"\n")
			fresh := fmt.Sprintf("fresh-%d", i)
			w.Kubectl(t, "expose", "pod", "web", "--name", fresh, "--port", "80")
			t.Cleanup(func() { w.Kubectl(t, "delete", "service", fresh) })
			for _, pool := range []string{"real", "other"} {
				step.rules(t, w, nodes(t, w, pool)[0])
			}
			step.answers(t, w, fresh)
		})
	}
}

// rules looks at a node's rules and processes.
func (s proxyStep) rules(t *testing.T, w *world.World, node string) {
	eventually.Succeeds(t, time.Minute, func() error {
		rules, err := w.Try(10*time.Second, "ssh", "--name", w.Name, node, "--", "iptables-save", "-t", "nat")
		tables, err2 := w.Try(10*time.Second, "ssh", "--name", w.Name, node, "--", "nft", "list", "tables")
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		wrong := strings.Contains(rules, ":KUBE-SVC-") != s.iptables
		for _, table := range []string{"kube-proxy", nftables.TableName} {
			wrong = wrong || strings.Contains(tables, "table ip "+table) != (table == s.table)
		}
		if wrong {
			return fmt.Errorf("the rules of services on %s are not %s's:\n%s%s", node, s.name, rules, tables)
		}
		if !strings.Contains(rules, "-A IP-MASQ-AGENT ") {
			return fmt.Errorf("%s has lost the ip-masq-agent's rules:\n%s", node, rules)
		}
		return nil
	})
	eventually.Succeeds(t, time.Minute, func() error { // probes of a proxy that has begun come after its rules
		var status struct {
			Nodes []struct {
				Name      string
				KubeProxy *struct{ Pid int }
			}
			Problems []string
		}
		statusInto(t, w, &status)
		for _, n := range status.Nodes {
			if (n.KubeProxy != nil && n.KubeProxy.Pid != 0) != s.kubeProxy {
				return fmt.Errorf("the status says of %s's kube-proxy: %+v", n.Name, n.KubeProxy)
			}
		}
		if i := slices.IndexFunc(status.Problems, func(p string) bool { return strings.Contains(p, "proxy") }); i >= 0 {
			return errors.New(status.Problems[i])
		}
		return nil
	})
}

// healthy waits until the load balancer's probes have found all back ends: none changes state while a packet is on its way.
func healthy(t *testing.T, w *world.World) {
	t.Helper()
	eventually.Succeeds(t, time.Minute, func() error {
		var status struct {
			Frontends []struct {
				Healthy []string
				Total   int
			}
		}
		statusInto(t, w, &status)
		for _, f := range status.Frontends {
			if len(f.Healthy) != f.Total {
				return fmt.Errorf("of a front end's %d back ends %v are healthy", f.Total, f.Healthy)
			}
		}
		return nil
	})
}

// answers asks a service that has just been made, and one that was there before, and walks to it.
func (s proxyStep) answers(t *testing.T, w *world.World, service string) {
	address := w.Kubectl(t, "get", "service", service, "-o", "jsonpath={.spec.clusterIP}")
	ask := func() error {
		_, err := w.Try(10*time.Second, "kubectl", "--name", w.Name, "exec", "curl", "--", "curl", "-sSf", "-m", "2", "http://"+address+"/hostname")
		return err
	}
	if !s.works {
		if ask() == nil {
			t.Error("a service answers without a service proxy")
		}
		return
	}
	eventually.Succeeds(t, time.Minute, ask)
	answers(t, w)
	healthy(t, w)
	for _, ends := range [][2]string{{"pod/curl", "svc/" + service}, {"internet/client", "svc/web"}} {
		out := w.Run(t, "walk", "--name", w.Name, "--live", "--from", ends[0], "--to", ends[1])
		if !strings.Contains(out, " steps agree") || !strings.Contains(out, "pod default/web") {
			t.Errorf("from %s to %s:\n%s", ends[0], ends[1], out)
		}
	}
}
