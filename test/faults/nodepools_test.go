package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/test/world"
)

// poolsFile is a cluster whose second subnet is for a second pool.
const poolsFile = `apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  network: {mode: bridge}
  nodePools:
  - {name: nodepool1, maxPods: 20%s}%s
  azure:
    vnets:
    - name: aksVnet
      addressPrefixes: [10.13.0.0/16]
      subnets: [{name: aks, prefix: 10.13.76.0/24}, {name: gpu, prefix: 10.13.77.0/24}]
`

const gpuNode = "aks-gpu-31351229-0"

// TestNodePools adds a pool with its own subnet to a running lab, changes its labels, kills the lab process while the pool is deleted,
// and adds and removes one by another file.
func TestNodePools(t *testing.T) {
	t.Parallel()
	w := world.Own(t, fmt.Sprintf("lab-pools-%d", os.Getpid()))
	t.Cleanup(func() {
		f := footprintOf(t, w)
		w.Run(t, "down", "--name", w.Name)
		f.expectGone(t, w)
	})
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	up := func(first, more string) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendf(nil, poolsFile, first, more), 0o600); err != nil {
			t.Fatal(err)
		}
		w.Run(t, "up", "--name", w.Name, "-f", file)
	}
	up("", "")
	deploy(t, w)
	before := fabricState(t, w)

	w.Az(t, "aks", "nodepool", "add", "-n", "gpu", "-c", "1", "-m", "10", "--labels", "sku=gpu", "--node-taints", "sku=gpu:NoSchedule",
		"--vnet-subnet-id", "/subscriptions/e7da9914-9b05-4891-893c-546cb7b0422e/resourceGroups/akstest/providers/Microsoft.Network/virtualNetworks/aksVnet/subnets/gpu")
	node := func(path string) string { return w.Kubectl(t, "get", "node", gpuNode, "-o", "jsonpath="+path) }
	eventually.Succeeds(t, time.Minute, func() error { // it is tainted not-ready for a moment longer than it is
		const about = `{.status.addresses[0].address} {.metadata.labels.sku} {.metadata.labels.kubernetes\.azure\.com/mode} {.spec.taints[*].key}`
		if got := node(about); got != "10.13.77.4 gpu user sku" {
			return fmt.Errorf("the node has %s", got)
		}
		return nil
	})
	expectHealthy(t, w, 2)
	w.Kubectl(t, "run", "here", "--image=ubuntu", `--overrides={"spec":{"nodeSelector":{"sku":"gpu"},"tolerations":[{"key":"sku","operator":"Exists"}]}}`,
		"--", "sleep", "3600")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod/here", "--timeout=60s")
	if address := w.Kubectl(t, "get", "pod", "here", "-o", "jsonpath={.status.podIP}"); !strings.HasPrefix(address, "10.13.77.") {
		t.Errorf("the pod has %s", address)
	}
	// The service proxy knows the first pool's subnet alone, as kube-proxy's clusterCIDR: others' pods are seen as their node.
	ip := w.Kubectl(t, "get", "service", "whereami", "-o", "jsonpath={.spec.clusterIP}")
	walk := w.Run(t, "walk", "--name", w.Name, "--live", "--from", "pod/here", "--to", ip+":80")
	for _, want := range []string{"steps agree", "the destination sees 10.13.77.4:"} {
		if !strings.Contains(walk, want) {
			t.Errorf("no %q in\n%s", want, walk)
		}
	}

	w.Kubectl(t, "taint", "node", gpuNode, "mine=1:PreferNoSchedule")
	up(", nodeLabels: {tier: base}", "\n  - {name: gpu, mode: User, maxPods: 10, vnetSubnet: aksVnet/gpu, nodeLabels: {sku: big}, nodeTaints: [\"new=x:NoSchedule\"]}")
	if got := node(`{.metadata.labels.sku} {.spec.taints[*].key}`); got != "big mine new" {
		t.Errorf("after the change the node has %s", got)
	}
	if got := w.Kubectl(t, "get", "nodes", "-l", "tier=base", "-o", "jsonpath={.items[*].metadata.name}"); got != "aks-nodepool1-31351229-0" {
		t.Errorf("nodes with the new label: %s", got)
	}

	told, err := killedAt(t, w, "is cordoned and drained", "az", "--name", w.Name, "aks", "nodepool", "delete", "-n", "gpu")
	t.Logf("killed while the pool was deleted: %v\n%s", err, told)
	w.Run(t, "up", "--name", w.Name)
	well(t, w)
	expectPools := func(names ...string) {
		t.Helper()
		got := strings.Fields(w.Az(t, "aks", "nodepool", "list", "-g", "akstest", "--cluster-name", "aksPacketWalkAzure", "--query", "[].name", "-o", "tsv"))
		if !slices.Equal(got, names) || len(readyNodes(t, w)) != len(names) {
			t.Errorf("pools %v, nodes %v", got, readyNodes(t, w))
		}
	}
	expectPools("nodepool1")
	if after := fabricState(t, w); after != before {
		t.Errorf("with the pool gone, the fabric was\n%s\nand is\n%s", before, after)
	}
	up("", "\n  - {name: more, maxPods: 10}")
	expectPools("nodepool1", "more")
	expectHealthy(t, w, 2)
	up("", "")
	expectPools("nodepool1")
	expectHealthy(t, w, 1)
}

// expectHealthy waits until the front end has that many back ends, and all of them are healthy.
func expectHealthy(t *testing.T, w *world.World, n int) {
	t.Helper()
	eventually.Succeeds(t, time.Minute, func() error {
		s := status(t, w)
		if len(s.Frontends) != 1 || len(s.Frontends[0].Healthy) != n || s.Frontends[0].Total != n {
			return errors.New(fmt.Sprint(s.Frontends))
		}
		return nil
	})
}
