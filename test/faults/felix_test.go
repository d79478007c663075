package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/lab"
	"packetwalk.dev/test/world"
)

// policyWorld is the world of examples/policy, with its shop.
type policyWorld struct{ *world.World }

func newPolicyWorld(t *testing.T) policyWorld {
	t.Helper()
	w := policyWorld{freshOf(t, "felix", "policy")}
	w.Kubectl(t, "apply", "-f", w.Example("policy", "shop.yaml"))
	w.Kubectl(t, "wait", "-n", "shop", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
	return w
}

func (w policyWorld) apply(t *testing.T, file string) {
	t.Helper()
	w.Kubectl(t, "apply", "-f", w.Example("policy", file))
}

// asks sends a request from a pod of the shop to the web pod.
func (w policyWorld) asks(t *testing.T, pod string) error {
	t.Helper()
	address := w.Kubectl(t, "get", "pod", "-n", "shop", "web", "-o", "jsonpath={.status.podIP}")
	_, err := w.Try(time.Minute, "kubectl", "--name", w.Name, "exec", "-n", "shop", pod, "--", "curl", "-sS", "--max-time", "2", "-o", "/dev/null",
		"http://"+address)
	return err
}

// until waits until requests from a pod go through, or do not.
func (w policyWorld) until(t *testing.T, pod string, allowed bool) {
	t.Helper()
	eventually.Succeeds(t, time.Minute, func() error {
		if err := w.asks(t, pod); (err == nil) != allowed {
			return fmt.Errorf("request from %s, want allowed: %t: %w", pod, allowed, err)
		}
		return nil
	})
}

func (w policyWorld) open(t *testing.T, pod string) openConnection {
	t.Helper()
	return open(t, w.World, "pod/shop/"+pod, w.Kubectl(t, "get", "pod", "-n", "shop", "web", "-o", "jsonpath={.status.podIP}"))
}

// TestFelixWithKubenet: felix enforces policies on pods with addresses of kubenet's ranges, on one node and between nodes, and a walk names the
// policy that drops the packet as the kernel does.
func TestFelixWithKubenet(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	text := "spec:\n  network: {plugin: kubenet, policy: calico}\n  nodePools: [{count: 2}]\n  images: {pull: never}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w := policyWorld{freshFrom(t, "felix-kubenet", file)}
	shop, err := os.ReadFile(w.Example("policy", "shop.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	node := w.Kubectl(t, "get", "node", "-o", "jsonpath={.items[0].metadata.name}")
	shop = regexp.MustCompile(`aks-nodepool1-\d+`).ReplaceAll(shop, []byte(strings.TrimSuffix(node, "-0"))) // as this cluster's nodes are named
	objects := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(objects, shop, 0o600); err != nil {
		t.Fatal(err)
	}
	w.Kubectl(t, "apply", "-f", objects)
	w.Kubectl(t, "wait", "-n", "shop", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
	if address := w.Kubectl(t, "get", "pod", "-n", "shop", "web", "-o", "jsonpath={.status.podIP}"); !strings.HasPrefix(address, "10.244.") {
		t.Errorf("web has address %s, which is not of kubenet's range", address)
	}
	w.until(t, "other", true)
	w.until(t, "front", true)
	w.apply(t, "front-to-web.yaml")
	w.until(t, "other", false)
	w.until(t, "front", true)
	out, _ := w.Try(time.Minute, "walk", "--name", w.Name, "--live", "--from", "pod/shop/other", "--to", "pod/shop/web:80")
	if !strings.Contains(out, "web-from-front") || !strings.Contains(out, "steps agree") {
		t.Errorf("the walk does not name the policy, or the kernel does not agree:\n%s", out)
	}
}

// TestFelix: policies hold while felix is down, status says that it is, and it is restarted. Connections that were allowed go on through
// its end, its restart, and changes of policies and pools.
func TestFelix(t *testing.T) {
	t.Parallel()
	w := newPolicyWorld(t)
	w.until(t, "other", true)
	c := w.open(t, "other")

	w.apply(t, "deny-all.yaml")
	w.until(t, "other", false)
	c.ask(t, "with a policy that denies new ones")
	// The policy forgets DNS: status warns of that for each of the shop's three pods, and of nothing else.
	var s lab.Status
	eventually.Succeeds(t, time.Minute, func() error { // felix of each node writes its rules when it comes to it
		if s = status(t, w.World); len(s.IgnoredPolicies) > 0 || len(s.Warnings) != 3 {
			return fmt.Errorf("status ignores policies %v and warns %q", s.IgnoredPolicies, s.Warnings)
		}
		return nil
	})
	for _, warning := range s.Warnings {
		if !strings.Contains(warning, "the cluster's DNS: dropped") || !strings.Contains(warning, "policy shop/deny-all, egress") {
			t.Errorf("status warns %q", warning)
		}
	}

	for _, n := range status(t, w.World).Nodes {
		kill(t, n.CalicoFelix.Pid)
	}
	if err := w.asks(t, "other"); err == nil {
		t.Error("without felix the policy is not enforced")
	}
	c.ask(t, "without felix")
	eventually.Succeeds(t, time.Minute, func() error {
		for _, n := range status(t, w.World).Nodes {
			if n.CalicoFelix.Restarts == 0 || n.CalicoFelix.Pid == 0 {
				return fmt.Errorf("felix of %s is not restarted", n.Name)
			}
		}
		return nil
	})
	eventually.Succeeds(t, time.Minute, func() error {
		problems := strings.Join(status(t, w.World).Problems, "\n")
		if strings.Contains(problems, "felix") || !strings.Contains(problems, "probe") || !strings.Contains(problems, "policy shop/deny-all, ingress") {
			return fmt.Errorf("problems, of which the policy that drops the probes is to be the only cause:\n%s", problems)
		}
		return nil
	})
	c.ask(t, "after felix's restart")
	if err := w.asks(t, "other"); err == nil {
		t.Error("after felix's restart the policy is not enforced")
	}

	const pool = `{"apiVersion":"crd.projectcalico.org/v1","kind":"IPPool","metadata":{"name":"pods"},"spec":{"cidr":"10.13.0.0/16","natOutgoing":true}}`
	if _, err := w.TryInput(time.Minute, pool, "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	node := status(t, w.World).Nodes[0].Name
	eventually.Succeeds(t, time.Minute, func() error {
		if sets := w.SSH(t, node, "ipset", "save"); !strings.Contains(sets, "add cali40masq-ipam-pools 10.13.0.0/16") {
			return fmt.Errorf("the pool is not in felix's set:\n%s", sets)
		}
		return nil
	})
	c.ask(t, "with an IPPool")
	w.Kubectl(t, "delete", "networkpolicy", "-n", "shop", "--all")
	w.until(t, "other", true)
	c.ask(t, "without policies")
	w.refused(t)
}

// refused checks that a policy which the API accepts and felix refuses gets felix's words as an event, and that a list which felix cannot
// read is a problem for as long as that is so.
func (w policyWorld) refused(t *testing.T) {
	const bad = `{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"crd.projectcalico.org/v1","kind":"NetworkPolicy","metadata":{"name":"default.bad","namespace":"shop"},
 "spec":{"tier":"default","selector":"app ==","ingress":[{"action":"Allow"}]}},
{"apiVersion":"crd.projectcalico.org/v1","kind":"GlobalNetworkPolicy","metadata":{"name":"default.bad"},
 "spec":{"tier":"default","selector":"app == 'nothing'","ingress":[{"action":"Allow","protocol":"TCP","destination":{"ports":["no port"]}}]}}]}`
	change := func(verb string) {
		if _, err := w.TryInput(time.Minute, bad, "kubectl", "--name", w.Name, verb, "-f", "-"); err != nil {
			t.Fatal(err)
		}
	}
	change("apply")
	const problem = "calico-felix cannot read the globalnetworkpolicies"
	eventually.Succeeds(t, time.Minute, func() error {
		events := w.Kubectl(t, "get", "events", "-n", "shop", "--field-selector", "reason=PolicyRefused", "-o", "jsonpath={.items[*].message}")
		problems := strings.Join(status(t, w.World).Problems, "\n")
		if !strings.Contains(events, "Selector = '(app ==)") || !strings.Contains(problems, problem) {
			return fmt.Errorf("events %q, problems:\n%s", events, problems)
		}
		return nil
	})
	change("delete")
	eventually.Succeeds(t, time.Minute, func() error {
		if problems := strings.Join(status(t, w.World).Problems, "\n"); strings.Contains(problems, problem) {
			return fmt.Errorf("%s", problems)
		}
		return nil
	})
}
