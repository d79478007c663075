package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/removetree"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/imageservice"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/realnode"
)

// realNodes is what all real nodes of a lab share: a layer of their roots.
type realNodes struct {
	once sync.Once
	err  error
}

// prepare makes what is shared, once for a lab. What is there stays: nodes have it mounted.
func (r *realNodes) prepare(d layout.Dir, bin layout.Binaries, c *cluster.Cluster) error {
	r.once.Do(func() { r.err = r.make(d, bin, c) })
	return r.err
}

func (r *realNodes) make(d layout.Dir, bin layout.Binaries, c *cluster.Cluster) error {
	programs, plugins, err := bin.RealNodePrograms()
	if err != nil {
		return err
	}
	felix, err := bin.FelixProgram(c)
	if err != nil {
		return err
	}
	if felix != "" {
		programs[filepath.Base(realnode.Felix)] = felix
	}
	if err := os.MkdirAll(d.State(), 0o700); err != nil {
		return err
	}
	if err := errors.Join(cgroup.MakeAll(d.Cgroup("")), d.MakeNodesDir()); err != nil {
		return err
	}
	base := d.ProgramsLayer()
	if _, err := os.Stat(base); err == nil {
		return nil
	}
	partial := base + ".partial"
	if err := removetree.Remove(partial); err != nil {
		return err
	}
	if err := realnode.WriteBase(partial, plugins, programs); err != nil {
		return err
	}
	return os.Rename(partial, base)
}

// startMachine starts a real node, or takes over the one that runs, and returns when it is Ready, or waits for a CNI plugin of the user's.
func (l *nodes) startMachine(ctx context.Context, n *node) error {
	if err := l.real.prepare(l.Dir, l.Binaries, l.Cluster()); err != nil {
		return err
	}
	c, err := l.machineProcess(ctx, n)
	if err != nil {
		return err
	}
	machine, err := l.RunWith(c, func(cmd *exec.Cmd) error { return realnode.Start(cmd, n.ns.Start) })
	if err != nil {
		return err
	}
	l.mu.Lock()
	n.machine = machine
	l.mu.Unlock()
	l.attend(ctx, n)
	if err := l.waitNode(ctx, n); err != nil {
		return fmt.Errorf("kubelet of %s: %w; the ends of its logs:%s%s", n.Name, err, supervise.LastLines(l.Dir.MachineLog(n.Name)),
			layout.LastLinesOfNode(l.Dir.NodeState(n.Name), "log/kubelet.log"))
	}
	return l.labelNode(ctx, n)
}

// labelNode gives a node's object the labels that its kubelet may not.
func (l *nodes) labelNode(ctx context.Context, n *node) error {
	_, err := l.patched(ctx, n.Name,
		map[string]any{"metadata": map[string]any{"labels": plan.AdminLabels(plan.NodeObject(l.Cluster(), n.Node))}})
	return err
}

// attend does for a real node what goes on while it runs: it gets images from the lab's registry, and with kubenet the configuration of
// its range of pods.
func (l *nodes) attend(ctx context.Context, n *node) {
	life, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	served := l.Keep(life, "the registry of "+n.Name, func(ctx context.Context) error {
		return l.library.ServeRegistry(ctx, l.access.CA, n.ns, l.Dir.Node(n.Name))
	})
	beside.Go(func() { <-served })
	if l.Cluster().Spec.Network.Plugin == cluster.PluginKubenet {
		followed := l.Keep(life, "the pod network of "+n.Name, func(ctx context.Context) error { return l.followPodCIDR(ctx, n) })
		beside.Go(func() { <-followed })
	}
	over := make(chan struct{})
	go func() {
		beside.Wait()
		close(over)
	}()
	n.stop, n.done = stop, over
}

// endMachine ends what a lab process that was killed had started of a machine before it wrote down its first process: that, and all that
// are in the machine's control groups.
func endMachine(ctx context.Context, ns *netns.Namespace, cgroup string, first supervise.Process) error {
	if err := lifecycle.EndOthers(ctx, ns, first); err != nil {
		return err
	}
	if err := netns.Kill(ctx, func() ([]int, error) { return realnode.Processes(cgroup) }); err != nil {
		return fmt.Errorf("end what was started before of %s: %w", first.Name, err)
	}
	return nil
}

// machineProcess writes what a real node is made of, unless it runs, and gives its first process.
func (l *nodes) machineProcess(ctx context.Context, n *node) (supervise.Process, error) {
	c := supervise.Process{
		Name: n.Name + ".machine", Path: l.Binaries.App, LogFile: l.Dir.MachineLog(n.Name), PidFile: l.Dir.MachinePid(n.Name),
	}
	state := l.Dir.NodeState(n.Name)
	c.Args = realnode.Args(state)
	if supervise.Recorded(c.PidFile) != 0 {
		return c, nil
	}
	if err := endMachine(ctx, n.ns, l.Dir.Cgroup(n.Name), c); err != nil {
		return c, err
	}
	identity, err := l.identity(n)
	if err := errors.Join(err, os.MkdirAll(state, 0o700)); err != nil {
		return c, err
	}
	distribution, err := l.BuiltIn.Root(ctx)
	if err != nil {
		return c, err
	}
	registries, err := imageservice.RegistryHosts(l.Dir.Node(n.Name))
	if err != nil {
		return c, err
	}
	object := plan.NodeObject(l.Cluster(), n.Node)
	var taints []realnode.Taint
	for _, t := range object.Spec.Taints {
		taints = append(taints, realnode.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	err = realnode.Config{
		Name: n.Name, State: state, Base: l.Dir.ProgramsLayer(), Distribution: distribution,
		Networks: filepath.Join(l.Dir.Node(n.Name), "cni", "net.d"), Kubernetes: identity,
		Cgroup: l.Dir.Cgroup(n.Name), Bounds: l.NodeBounds, ResolvConf: resolvConf(plan.AzureResolver),
		Registries: registries,
		Kubelet: realnode.KubeletConfig{
			Name: n.Name, Address: n.Address, ProviderID: object.Spec.ProviderID, Labels: plan.KubeletLabels(object), Taints: taints,
			MaxPods:      n.MaxPods,
			PodProcesses: l.PodProcesses, ClusterDNS: l.Cluster().Spec.Network.DNSServiceIP,
		},
	}.Prepare()
	return c, err
}

// identity is a real node's kubeconfig, as system:node:NAME, and the certificate that its kubelet serves with, as files.
func (l *nodes) identity(n *node) (map[string][]byte, error) {
	now := time.Now()
	kubeconfig, err := l.access.CA.Kubeconfig(l.Dir.Name(), l.access.Config.Server(), controlplane.NodeUser(n.Name), now)
	if err != nil {
		return nil, err
	}
	serving, err := l.access.CA.KubeletPair(n.Name, n.Address, now)
	if err != nil {
		return nil, err
	}
	agent, err := os.ReadFile(l.agentKubeconfig(n))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		realnode.KubeletKubeconfig: kubeconfig, realnode.ClientCA: l.access.CA.Certificate, realnode.ServingCert: serving.Certificate,
		realnode.ServingKey: serving.Key, filepath.Base(realnode.NodeAgentKubeconfig): agent,
	}
	if l.Cluster().CalicoVersion() != "" {
		files[filepath.Base(realnode.FelixKubeconfig)], err = os.ReadFile(l.Dir.FelixKubeconfig(n.Name))
	}
	return files, err
}

// followPodCIDR writes the CNI configuration for the range that the API gives the node, and again when it gets another because it
// registered anew.
func (l *nodes) followPodCIDR(ctx context.Context, n *node) error {
	for written := ""; ; {
		object, err := l.api.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil && object.Spec.PodCIDR != "" && object.Spec.PodCIDR != written {
			pods, err := netip.ParsePrefix(object.Spec.PodCIDR)
			if err == nil {
				err = l.writeConflist(n, pods)
			}
			if err != nil {
				return err
			}
			written = object.Spec.PodCIDR
		}
		wait := lookPause
		if written != "" {
			wait = lifecycle.KeepSteady
		}
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
	}
}
