package policies

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/bpflock"
	"packetwalk.dev/test/agree"
	"packetwalk.dev/test/world"
)

var (
	packets = flag.Int("packets", 40, "how many packets are walked")
	seed    = flag.Uint64("seed", 1, "the seed of the first round")
)

// perRound is how many packets meet the same policies.
const perRound = 250

const config = `
apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  network: {policy: calico}
  loadBalancer: {sku: basic}
  nodePools:
  - {name: system}
  - {name: many, count: 3, mode: User, runtime: simulated}
  azure:
    vnets:
    - name: aksVnet
      addressPrefixes: [10.13.0.0/16]
      subnets:
      - {name: aks, prefix: 10.13.76.0/24}
      - {name: vmsubnet, prefix: 10.13.1.0/24}
    vms: [{name: testvm, subnet: aksVnet/vmsubnet, address: 10.13.1.4, app: nginx}]
`

func TestMain(m *testing.M) { os.Exit(world.Main(m)) }

// TestPolicies walks packets through random policies. The kernel has to agree with every step.
func TestPolicies(t *testing.T) {
	w := start(t)
	nodes := strings.Fields(w.Kubectl(t, "get", "nodes", "-l", "type=simulated", "-o", "jsonpath={.items[*].metadata.name}"))
	apply(t, w, "apply", workloads(nodes))
	for _, ns := range namespaces {
		w.Kubectl(t, "wait", "--namespace", ns, "--for=condition=Ready", "pods", "--all", "--timeout=60s")
		w.Kubectl(t, "wait", "--namespace", ns, "--for=jsonpath={.status.loadBalancer.ingress}", "service/web", "--timeout=60s")
	}
	view, all := agree.Look(t, w), &agree.Account{}
	for round := uint64(0); all.Pairs < *packets; round++ {
		r := random{rand.New(rand.NewPCG(*seed+round, 0))}
		policies := r.policies(nodes)
		apply(t, w, "apply", policies)
		view.Renew(t)
		view.Settle(t)
		for range min(perRound, *packets-all.Pairs) {
			p := r.pair(nodes)
			unlock, err := bpflock.Walk()
			if err != nil {
				t.Fatal(err)
			}
			why := view.Walk(t.Context(), p, all)
			unlock()
			if why != "" {
				t.Errorf("seed %d: %s\n%s", *seed+round, p, why)
			}
		}
		apply(t, w, "delete", policies)
		t.Logf("seed %d, %d policies: %v", *seed+round, len(policies)-1, all)
	}
	t.Log(all.Ends)
}

// start brings the lab up.
func start(t *testing.T) *world.World {
	t.Helper()
	w := world.New(t, fmt.Sprintf("policies-%d", os.Getpid()))
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("KEEP") != "" {
			t.Logf("kept: lab %s", w.Name)
			return
		}
		if _, err := w.Try(3*time.Minute, "down", "--name", w.Name); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Try(3*time.Minute, "up", "--name", w.Name, "-f", file); err != nil {
		t.Fatal(err)
	}
	return w
}

// apply has kubectl apply or delete objects.
func apply(t *testing.T, w *world.World, verb string, objects []object) {
	t.Helper()
	text, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.TryInput(time.Minute, string(text), "kubectl", "--name", w.Name, verb, "-f", "-"); err != nil {
		t.Fatal(err)
	}
}
