package foreign

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/test/agree"
	"packetwalk.dev/test/world"
)

// nodes is how many a cluster has.
const nodes = 3

const config = `
apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  network: %s
  serviceProxy: {implementation: none}
  nodePools:
  - {name: real, count: %d}
`

// cluster is a cluster of others.
type cluster struct {
	name      string
	network   string // spec.network
	manifests []string
	values    values
}

// values are what manifests are filled with.
type values struct {
	FlannelImage, PluginsImage, KubeProxyImage string
	APIServer, PodCIDR                         string
	PodPrefix                                  string   // of the names of pods' interfaces, where kube-proxy knows pods by these
	Backend                                    string   // flannel's
	Mode                                       string   // kube-proxy's
	Ranges                                     []string // "NODE PREFIX"
}

// What spec.network says: no plugin, with and without Azure's routes to the nodes' ranges of pods, and Calico's policies.
const (
	routed   = "{plugin: none, podCIDR: " + podCIDR + ", routes: true}"
	unrouted = "{plugin: none, podCIDR: " + podCIDR + ", routes: false}"
	calico   = "{policy: calico}"

	podCIDR      = "10.244.0.0/16"
	subnetPrefix = "10.224.0.0/16" // of the default virtual network, from which Calico's pods have their addresses
)

var clusters = []cluster{
	{"flannel-hostgw", routed, []string{"kube-proxy.yaml", "flannel.yaml"}, values{Mode: "iptables", Backend: "host-gw"}},
	{"flannel-vxlan", unrouted, []string{"kube-proxy.yaml", "flannel.yaml"}, values{Mode: "iptables", Backend: "vxlan"}},
	{"bridge", routed, []string{"kube-proxy.yaml", "bridge.yaml"}, values{Mode: "nftables"}},
	{"calico", calico, []string{"kube-proxy.yaml", "policies.yaml"}, values{Mode: "iptables", PodCIDR: subnetPrefix, PodPrefix: "azv"}},
	{"chart", routed, nil, values{}}, // packetwalk's own
}

// TestClusters compares walks with the kernel on every cluster.
func TestClusters(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts clusters")
	}
	for _, c := range clusters {
		t.Run(c.name, func(t *testing.T) {
			w := c.start(t)
			objects := compare(t, w)
			if c.manifests != nil {
				unusual(t, w, objects, c.values.Mode)
			}
		})
	}
}

// fewest is how many pairs a cluster is to be compared for.
const fewest = 200

// compare walks all pairs, compares each walk with the kernel, and returns the cluster's objects.
func compare(t *testing.T, w *world.World) *snapshot.Objects {
	v := agree.Look(t, w)
	v.ClusterOnly = true
	objects := v.Objects()
	v.Settle(t)
	a, all := &agree.Account{}, pairs(t, w, &objects)
	for _, p := range all {
		if why := v.Walk(t.Context(), p, a); why != "" {
			t.Errorf("%s\n%s", p, why)
		}
	}
	t.Log(a)
	if a.Pairs < fewest {
		t.Errorf("only %d pairs", a.Pairs)
	}
	newUser(t, w).command(t, all)
	return &objects
}

// start brings a cluster up: a lab, and on it what others wrote.
func (c cluster) start(t *testing.T) *world.World {
	t.Helper()
	w := world.New(t, fmt.Sprintf("foreign-%s-%d", c.name, os.Getpid()))
	if err := built(w.Root); err != nil {
		if os.Getenv("FOREIGN") != "" {
			t.Fatalf("the programs of others are not there: %v; make test-foreign builds them", err)
		}
		t.Skip("make test leaves clusters of others to make test-foreign, which builds their programs")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := loadImages(ctx, w.Root); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("KEEP") != "" {
			t.Logf("kept: lab %s", w.Name)
			return
		}
		if _, err := w.Try(2*time.Minute, "down", "--name", w.Name); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, config, c.network, nodes), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Try(3*time.Minute, "up", "--name", w.Name, "-f", file); err != nil {
		t.Fatal(err)
	}
	c.install(t, w)
	return w
}

// install puts on the cluster what it is to have, and waits until it works.
func (c cluster) install(t *testing.T, w *world.World) {
	t.Helper()
	v := c.values
	v.FlannelImage, v.PluginsImage, v.KubeProxyImage = flannelImage, pluginsImage, kubeProxyImage
	v.PodCIDR = cmp.Or(v.PodCIDR, podCIDR)
	v.APIServer = w.Kubectl(t, "get", "endpoints", "kubernetes", "-o", "jsonpath={.subsets[0].addresses[0].ip}")
	eventually.Succeeds(t, 30*time.Second, func() error {
		text, err := w.Try(10*time.Second, "kubectl", "--name", w.Name, "get", "nodes", "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.spec.podCIDR}{"\n"}{end}`)
		v.Ranges = strings.Split(strings.TrimSpace(text), "\n")
		for _, r := range v.Ranges {
			if err == nil && c.network != calico && !strings.HasSuffix(r, ".0/24") {
				err = fmt.Errorf("node %q has no range of pods", r)
			}
		}
		return err
	})
	if c.manifests == nil {
		installChart(t, w, &v)
	}
	for _, name := range append(c.manifests, "workloads.yaml") {
		apply(t, w, name, v)
	}
	w.Kubectl(t, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s")
	for _, r := range v.Ranges {
		// Redirects, which hosts get for packets to themselves, and errors share a limit (net/ipv4/route.c, ip_rt_send_redirect), and no
		// snapshot shows how many there were.
		w.SSH(t, strings.Fields(r)[0], "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0")
	}
	for _, d := range []string{"daemonset/echo", "daemonset/host", "deployment/one"} {
		if _, err := w.Try(3*time.Minute, "kubectl", "--name", w.Name, "rollout", "status", d, "--timeout=150s"); err != nil {
			t.Fatalf("%v\n%s", err, w.Kubectl(t, "get", "pods", "-A", "-o", "wide"))
		}
	}
}

// apply fills a manifest in and has kubectl apply it.
func apply(t *testing.T, w *world.World, name string, v values) {
	t.Helper()
	text, err := template.ParseFiles(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := text.Execute(&b, v); err != nil {
		t.Fatal(err)
	}
	if _, err := w.TryInput(time.Minute, b.String(), "kubectl", "--name", w.Name, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}
