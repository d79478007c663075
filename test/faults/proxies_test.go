package faults

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/test/world"
)

// proxyCluster is a small one with today's rules, and a service proxy.
const proxyCluster = `
spec:
  nodePools: [%s]
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

// proxyPools may be "{name: light, count: 1}, {name: real, count: 1, runtime: containerd}" where there is bin/realnode.
var proxyPools = flag.String("proxy-pools", "{name: nodepool1, count: 2}", "the node pools of that lab")

// TestServiceProxyChanged changes the service proxy of a running lab, with connections that are open and a steady stream of new ones to a
// cluster IP and, from outside, to a load balancer: none is lost, and nothing is left of the one before. Between kube-proxy's two modes it
// has a gap of its own, which is reported.
func TestServiceProxyChanged(t *testing.T) {
	w := world.New(t, "proxies")
	t.Cleanup(func() {
		if _, err := w.Try(time.Minute, "down", "--name", w.Name); err != nil {
			t.Error(err)
		}
	})
	change := func(p serviceProxy) {
		t.Helper()
		file := writeFile(t, fmt.Sprintf(proxyCluster, *proxyPools, p.implementation, p.backend))
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
		clients := []*proxyClient{newProxyClient(t, w, "pod/default/ubuntu", inside), newProxyClient(t, w, "client", public)}
		began := time.Now()
		change(p)
		took := time.Since(began)
		leftBehind(t, w, p)
		for _, c := range clients {
			c.check(t, fmt.Sprintf("%v → %v in %v", from, p, took.Round(100*time.Millisecond)),
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
	world.Eventually(t, time.Minute, func() error {
		if public = w.Kubectl(t, "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"); public == "" {
			return fmt.Errorf("no address yet")
		}
		return request(w, public)
	})
	return w.Kubectl(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"), public
}

// leftBehind waits until each node has the rules of a service proxy, and no others.
func leftBehind(t *testing.T, w *world.World, p serviceProxy) {
	t.Helper()
	for _, node := range strings.Fields(w.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")) {
		world.Eventually(t, time.Minute, func() error {
			if wrong := p.wrong(w.SSH(t, node, "nft", "list", "ruleset")); len(wrong) > 0 {
				return fmt.Errorf("%s with %v: %q", node, p, wrong)
			}
			return nil
		})
	}
}

// wrong are tables and chains of nft's listing that are not the service proxy's, and those of its own that are not there.
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

// openConnections is how many connections each client keeps open all the time, and enoughConnections how many new ones it makes at least.
const (
	openConnections   = 10
	enoughConnections = 100
)

// proxyClient asks a web server, over connections that stay open and over new ones, one after the other.
type proxyClient struct {
	host string
	ask  func() (string, error)
	end  func()
}

// check ends the client, and with it what was lost in the meantime, unless a gap is not ours.
func (c *proxyClient) check(t *testing.T, change string, gap bool) {
	t.Helper()
	var got connections
	world.Eventually(t, time.Minute, func() error {
		if got = c.report(t); got.made < enoughConnections {
			return fmt.Errorf("%s: %+v", c.host, got)
		}
		return nil
	})
	c.end()
	text := fmt.Sprintf("%s, from %s: %d of %d open connections answer, %d of %d new ones were lost, the slowest took %v s", change, c.host,
		got.open, openConnections, got.lost, got.made+got.lost, got.longest)
	if (got.open != openConnections || got.lost > 0) && !gap {
		t.Error(text)
	} else {
		t.Log(text)
	}
}

// countScript counts what curl wrote to the file $made: lines with status 200, others, and the longest time in them. Curl writes a line a
// word at a time: what it has not ended yet is no line.
const countScript = `count() {
  head -n "$(wc -l <"$made")" "$made" | awk 'BEGIN { longest = 0 } $1 == 200 { good++ } $2 > longest { longest = $2 }
    END { print good + 0, NR - good, longest }'
}
`

// proxyScript makes up to a hundred connections a second, each with one request, and has curl write a line for each: the status of the
// answer, or 000 when there was none within ten seconds, which is past three lost packets, and how long it took in seconds. For each line
// that it reads it asks over the open connections, counts all, and tells how long the longest took.
const proxyScript = countScript + `made=$(mktemp)
curl -s -m 10 --rate 100/s -H 'Connection: close' -o /dev/null -w '%{stderr}%{http_code} %{time_total}\n' "http://$1/?[1-1000000]" 2>"$made" </dev/null &
stream=$!
trap 'kill $stream; rm "$made"' EXIT
request=$'HEAD / HTTP/1.1\r\nHost: web\r\n\r\n'
for i in $(seq $2); do exec {fd}<>/dev/tcp/$1/80; fds="$fds $fd"; done
while read -r line; do
  open=0
  for fd in $fds; do
    printf "%s" "$request" >&$fd || continue
    read -r -t 10 answer <&$fd && case "$answer" in *" 200 "*) open=$((open + 1));; esac
    while read -r -t 10 rest <&$fd && [ "$rest" != $'\r' ]; do :; done
  done
  echo $open $(count)
done`

// TestCount: a line that is half written counts for nothing, wherever it was cut.
func TestCount(t *testing.T) {
	made := filepath.Join(t.TempDir(), "made")
	const lines = "200 0.001200\n000 10.000100\n200 0.030000\n"
	wants := map[int]string{0: "0 0 0", 1: "1 0 0.001200", 2: "1 1 10.000100", 3: "2 1 10.000100"} // by whole lines
	for cut := range len(lines) + 1 {
		if err := os.WriteFile(made, []byte(lines[:cut]), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("bash", "-c", `made=$1; `+countScript+"count", "count", made).CombinedOutput()
		if want := wants[strings.Count(lines[:cut], "\n")]; err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("of %q counted %q, %v, want %s", lines[:cut], out, err, want)
		}
	}
}

func newProxyClient(t *testing.T, w *world.World, host, address string) *proxyClient {
	t.Helper()
	in, out, end := w.Talk(t, host, proxyScript, address, strconv.Itoa(openConnections))
	c := &proxyClient{host: host, end: end, ask: func() (string, error) {
		fmt.Fprintln(in, "report")
		return out.ReadString('\n')
	}}
	world.Eventually(t, time.Minute, func() error {
		if got := c.report(t); got.open != openConnections || got.made == 0 || got.lost > 0 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	return c
}

// connections are how many of the open ones answer, how many new ones were made and lost so far, and how many seconds the longest took.
type connections struct {
	open, made, lost int
	longest          float64
}

func (c *proxyClient) report(t *testing.T) (got connections) {
	t.Helper()
	line, err := c.ask()
	if err == nil {
		_, err = fmt.Sscan(line, &got.open, &got.made, &got.lost, &got.longest)
	}
	if err != nil {
		t.Fatalf("the client on %s says %q: %v", c.host, line, err)
	}
	return got
}

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
	w := world.New(t, "hostports")
	t.Cleanup(func() {
		if _, err := w.Try(time.Minute, "down", "--name", w.Name); err != nil {
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
				if out, err := w.Try(20*time.Second, "ssh", "--name", w.Name, from, "--", "curl", "-sSf", "-m", "10", "-o", "/dev/null",
					fmt.Sprintf("http://%s:%d/", address, port)); err != nil {
					t.Errorf("with %s, port %d from %s: %v %s", backend, port, from, err, out)
				}
			}
		}
	}
}
