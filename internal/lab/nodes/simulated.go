package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/simulated"
)

// startSimulated starts the process of a simulated node, or takes over the one that runs, and returns when the node is Ready.
func (k kubelets) startSimulated(ctx context.Context, n *Node) error {
	c, err := k.simulatedProcess(n)
	if err != nil {
		return err
	}
	if err := lifecycle.EndOthers(ctx, n.ns, c); err != nil {
		return err
	}
	process, err := k.Run(n.ns, c)
	if err != nil {
		return err
	}
	k.setProcess(&n.machine, process)
	if k.Cluster().Spec.Network.Plugin == cluster.PluginKubenet {
		life, stop := context.WithCancel(ctx)
		n.stop, n.done = stop, k.Keep(life, "the pod network of "+n.Name, func(ctx context.Context) error { return k.followPodCIDR(ctx, n) })
	}
	if err := k.waitNode(ctx, n); err != nil {
		return fmt.Errorf("%s: %w; the end of its log:%s", n.Name, err, supervise.LastLines(c.LogFile))
	}
	return k.completeNode(ctx, n)
}

// simulatedProcess writes what a simulated node is told, and gives its process.
func (k kubelets) simulatedProcess(n *Node) (supervise.Process, error) {
	dir, state := k.Dir.Node(n.Name), k.Dir.SimulatedDir(n.Name)
	file := filepath.Join(state, "config.json")
	c := supervise.Process{
		Name: n.Name + ".simulated", Path: k.Binaries.Simulated, Args: []string{file}, LogFile: k.Dir.Log(n.Name + ".simulated"),
		PidFile: filepath.Join(dir, "simulated.pid"),
	}
	identity, err := k.identity(n)
	if err != nil {
		return c, err
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return c, err
	}
	for name, text := range identity {
		if err := atomicfile.Write(filepath.Join(state, name), text, 0o600); err != nil {
			return c, err
		}
	}
	object := plan.NodeObject(k.Cluster(), n.Node)
	object.Labels = plan.KubeletLabels(object)
	object.Status.NodeInfo.KubeletVersion = "v" + plan.KubernetesVersion
	text, err := json.Marshal(simulated.Config{
		Node: object, Kubeconfig: filepath.Join(state, realnode.KubeletKubeconfig), ClientCA: filepath.Join(state, realnode.ClientCA),
		Certificate: filepath.Join(state, realnode.ServingCert), Key: filepath.Join(state, realnode.ServingKey),
		Namespaces: filepath.Join(k.Dir.PodNetNSDir(), n.Name), Networks: filepath.Join(dir, "cni", "net.d"),
		Plugins: filepath.Dir(k.Binaries.CNI), Cache: filepath.Join(dir, "cni", "cache"),
	})
	if err != nil {
		return c, err
	}
	return c, atomicfile.Write(file, text, 0o600)
}
