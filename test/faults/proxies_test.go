package faults

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/test/world"
)

// proxyCluster is a small one with today's rules, and a service proxy.
const proxyCluster = `
spec:
  nodePools: [{name: nodepool1, count: 2}]
  images: {pull: never}
  serviceProxy: {implementation: %s, backend: %s}
`

type serviceProxy struct{ implementation, backend string }

func (p serviceProxy) String() string { return p.implementation + " with " + p.backend }

var fourProxies = map[rune]serviceProxy{
	'a': {"packetwalk", "iptables"}, 'b': {"packetwalk", "nftables"}, 'c': {"kube-proxy", "iptables"}, 'd': {"kube-proxy", "nftables"},
}

// proxyOrder are the service proxies of TestServiceProxyChanged, one after the other. "abacadbcbdcda" goes from each to each other once.
var proxyOrder = flag.String("proxies", "abcad", "the service proxies that a lab changes to: a, b packetwalk with iptables, nftables, c, d kube-proxy")

// TestServiceProxyChanged changes the service proxy of a running lab, with connections that are open and a steady stream of new ones to a
// cluster IP and, from outside, to a load balancer: none is lost, and nothing is left of the one before. Between kube-proxy's two modes it
// has a gap of its own, which is reported.
func TestServiceProxyChanged(t *testing.T) {
	t.Parallel()
	w := world.Own(t, "proxies")
	t.Cleanup(func() {
		if _, err := w.Try(3*time.Minute, "down", "--name", w.Name); err != nil {
			t.Error(err)
		}
	})
	change := func(p serviceProxy) {
		t.Helper()
		file := writeFile(t, fmt.Sprintf(proxyCluster, p.implementation, p.backend))
		if _, err := w.Try(3*time.Minute, "up", "--name", w.Name, "-f", file); err != nil {
			t.Fatalf("to %v: %v", p, err)
		}
	}
	var order []serviceProxy
	for _, r := range *proxyOrder {
		order = append(order, fourProxies[r])
	}
	change(order[0])
	inside, public := webService(t, w)
	for i, p := range order[1:] {
		from := order[i]
		clients := []*world.Stream{world.NewStream(t, w, "pod/default/ubuntu", inside), world.NewStream(t, w, "client", public)}
		began := time.Now()
		change(p)
		took := time.Since(began)
		leftBehind(t, w, p)
		for _, c := range clients {
			c.Check(t, fmt.Sprintf("%v → %v in %v", from, p, took.Round(100*time.Millisecond)),
				from.implementation == "kube-proxy" && p.implementation == "kube-proxy")
		}
	}
}

// webService has two pods behind a cluster IP and a public address.
func webService(t *testing.T, w *world.World) (inside, public string) {
	t.Helper()
	w.Kubectl(t, "create", "deployment", "web", "--image=nginx", "--replicas=2")
	w.Kubectl(t, "expose", "deployment", "web", "--port=80", "--type=LoadBalancer")
	w.Kubectl(t, "run", "ubuntu", "--image=ubuntu", "--", "sleep", "36000")
	w.Kubectl(t, "rollout", "status", "deployment/web", "--timeout=120s")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/ubuntu", "--timeout=120s")
	eventually.Succeeds(t, time.Minute, func() error {
		if public = w.Kubectl(t, "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"); public == "" {
			return fmt.Errorf("no address yet")
		}
		return request(w, public)
	})
	inside = w.Kubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	eventually.Succeeds(t, time.Minute, func() error { // another node may have been the first to have its rules
		_, err := w.Try(time.Minute, "kubectl", "--name", w.Name, "exec", "ubuntu", "--", "curl", "-sS", "-o", "/dev/null", "-m", "10", "http://"+inside)
		return err
	})
	return inside, public
}

// leftBehind waits until each node has the rules of a service proxy, and no others.
func leftBehind(t *testing.T, w *world.World, p serviceProxy) {
	t.Helper()
	for _, node := range strings.Fields(w.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")) {
		eventually.Succeeds(t, time.Minute, func() error {
			if wrong := p.wrong(w.SSH(t, node, "nft", "list", "ruleset")); len(wrong) > 0 {
				return fmt.Errorf("%s with %v: %q", node, p, wrong)
			}
			return nil
		})
	}
}

// wrong returns tables and chains of nft's listing that are not the service proxy's, and those of its own that are missing.
func (p serviceProxy) wrong(rules string) (wrong []string) {
	wanted := map[string]bool{}
	for r, table := range map[rune]string{'b': "packetwalk-services", 'd': "kube-proxy"} {
		if fourProxies[r] == p {
			wanted["ip "+table] = true
			wanted["ip6 "+table] = p.implementation == "kube-proxy"
		}
	}
	for _, chain := range []string{"nat KUBE-SERVICES", "nat KUBE-MARK-MASQ", "nat KUBE-POSTROUTING", "mangle KUBE-PROXY-CANARY"} {
		wanted["ip "+chain] = p.backend == "iptables"
		wanted["ip6 "+chain] = p == fourProxies['c']
	}
	there, table := map[string]bool{}, ""
	for line := range strings.Lines(rules) {
		switch words := strings.Fields(line); {
		case len(words) == 4 && words[0] == "table":
			table = words[1] + " " + words[2]
			there[table] = true
		case len(words) == 3 && words[0] == "chain":
			there[table+" "+words[1]] = true
		}
	}
	for name, is := range wanted {
		if is && !there[name] {
			wrong = append(wrong, "no "+name)
		}
	}
	for name := range there {
		family, rest, _ := strings.Cut(name, " ")
		of := family + " nat KUBE-SERVICES" // of the same proxy
		switch table, chain, _ := strings.Cut(rest, " "); {
		case table == "packetwalk-services" || table == "kube-proxy":
			of = family + " " + table
		case slices.Contains(kubeletsChains, chain) || !strings.HasPrefix(chain, "KUBE-"):
			continue
		}
		if !wanted[of] {
			wrong = append(wrong, name)
		}
	}
	return wrong
}

// kubeletsChains are made by kubelets; the first by service proxies, too.
var kubeletsChains = []string{"KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"}

const kubenetCluster = `
spec:
  network: {plugin: kubenet}
  nodePools: [{name: nodepool1, count: 2}]
  images: {pull: never}
  serviceProxy: {backend: %s}
`

const hostPortPod = `
apiVersion: v1
kind: Pod
metadata: {name: on-%[1]d}
spec:
  nodeName: %[2]s
  containers: [{name: web, image: nginx, ports: [{containerPort: 80, hostPort: %[1]d}]}]
`

// TestHostPortsOfKubenet: with kubenet host ports are masqueraded by the mark of a service proxy with iptables, or by portmap's own. Those
// that are there answer, and new ones are made, whichever it is and was.
func TestHostPortsOfKubenet(t *testing.T) {
	t.Parallel()
	w := world.Own(t, "hostports")
	t.Cleanup(func() {
		if _, err := w.Try(3*time.Minute, "down", "--name", w.Name); err != nil {
			t.Error(err)
		}
	})
	for i, backend := range []string{"nftables", "iptables", "nftables"} {
		file := writeFile(t, fmt.Sprintf(kubenetCluster, backend))
		if _, err := w.Try(3*time.Minute, "up", "--name", w.Name, "-f", file); err != nil {
			t.Fatal(err)
		}
		nodes := strings.Fields(w.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"))
		pod := fmt.Sprintf(hostPortPod, 8080+i, nodes[0])
		if _, err := w.TryInput(time.Minute, pod, "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		w.Kubectl(t, "wait", "--for=condition=Ready", "--timeout=60s", fmt.Sprintf("pod/on-%d", 8080+i))
		address := w.Kubectl(t, "get", "pod", fmt.Sprintf("on-%d", 8080+i), "-o", "jsonpath={.status.hostIP}")
		for port := 8080; port <= 8080+i; port++ {
			for _, from := range nodes { // the node itself is masqueraded
				if out, err := w.Try(time.Minute, "ssh", "--name", w.Name, from, "--", "curl", "-sSf", "-m", "20", "-o", "/dev/null",
					fmt.Sprintf("http://%s:%d/", address, port)); err != nil {
					t.Errorf("with %s, port %d from %s: %v %s", backend, port, from, err, out)
				}
			}
		}
	}
}
