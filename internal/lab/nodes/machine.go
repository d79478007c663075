package nodes

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
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/isolation"
	"packetwalk.dev/internal/pods/realnode"
)

// SharedLayer is a layer of the roots of all real nodes and container groups of a lab.
type SharedLayer struct {
	once sync.Once
	err  error
}

// Prepare makes what is shared, and mounts the first images, once for a lab. What exists stays: nodes have it mounted.
func (r *SharedLayer) Prepare(e *lifecycle.Env, library *imageservice.Service) error {
	r.once.Do(func() {
		if r.err = r.make(e.Dir, e.Binaries, e.Cluster()); r.err == nil {
			library.MountFirst()
		}
	})
	return r.err
}

func (r *SharedLayer) make(d layout.Dir, bin layout.Binaries, c *cluster.Cluster) error {
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
func (k kubelets) startMachine(ctx context.Context, n *Node) error {
	if err := k.Shared.Prepare(k.Env, k.Library); err != nil {
		return err
	}
	c, err := k.machineProcess(ctx, n)
	if err != nil {
		return err
	}
	machine, err := k.RunWith(c, func(cmd *exec.Cmd) error { return isolation.Start(cmd, n.ns.Start) })
	if err != nil {
		return err
	}
	k.setProcess(&n.machine, machine)
	k.attend(ctx, n)
	if err := k.waitNode(ctx, n); err != nil {
		return fmt.Errorf("kubelet of %s: %w; the ends of its logs:%s%s", n.Name, err, supervise.LastLines(k.Dir.MachineLog(n.Name)),
			layout.LastLinesOfNode(k.Dir.NodeState(n.Name), "log/kubelet.log"))
	}
	return k.completeNode(ctx, n)
}

// completeNode gives a node's object the labels that its kubelet may not, and with Azure CNI Overlay the node its NodeNetworkConfig.
func (k kubelets) completeNode(ctx context.Context, n *Node) error {
	object, err := k.patched(ctx, n.Name,
		map[string]any{"metadata": map[string]any{"labels": plan.AdminLabels(plan.NodeObject(k.Cluster(), n.Node))}})
	if err != nil || !k.Cluster().Spec.Network.IsOverlay() {
		return err
	}
	network := k.Azure.Current()
	nic, _ := network.NIC(n.NIC)
	doc, err := manifests.NodeNetworkConfig(k.Cluster(), n.Node, object.UID, nic.Overlay)
	if err == nil {
		err = manifests.Apply(ctx, k.API.REST(), []string{doc})
	}
	if err == nil {
		err = manifests.ApplyStatus(ctx, k.API.REST(), []string{doc})
	}
	return err
}

// attend does for a real node what goes on while it runs: it gets images from the lab's registry, and with kubenet the configuration of
// its range of pods.
func (k kubelets) attend(ctx context.Context, n *Node) {
	life, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	served := k.Keep(life, "the registry of "+n.Name, func(ctx context.Context) error {
		return k.Library.ServeRegistry(ctx, k.Access.CA, n.ns, k.Dir.Node(n.Name))
	})
	beside.Go(func() { <-served })
	if k.Cluster().Spec.Network.Plugin == cluster.PluginKubenet {
		followed := k.Keep(life, "the pod network of "+n.Name, func(ctx context.Context) error { return k.followPodCIDR(ctx, n) })
		beside.Go(func() { <-followed })
	}
	over := make(chan struct{})
	go func() {
		beside.Wait()
		close(over)
	}()
	n.stop, n.done = stop, over
}

// EndMachine ends what a lab process that was killed had started of a machine before it wrote down its first process: that, and all that
// are in the machine's control groups.
func EndMachine(ctx context.Context, ns *netns.Namespace, cgroup string, first supervise.Process) error {
	if err := lifecycle.EndOthers(ctx, ns, first); err != nil {
		return err
	}
	if err := netns.Kill(ctx, func() ([]int, error) { return realnode.Processes(cgroup) }); err != nil {
		return fmt.Errorf("end what was started before of %s: %w", first.Name, err)
	}
	return nil
}

// machineProcess writes what a real node is made of, unless it runs, and gives its first process.
func (k kubelets) machineProcess(ctx context.Context, n *Node) (supervise.Process, error) {
	c := supervise.Process{
		Name: n.Name + ".machine", Path: k.Binaries.App, LogFile: k.Dir.MachineLog(n.Name), PidFile: k.Dir.MachinePid(n.Name),
	}
	state := k.Dir.NodeState(n.Name)
	c.Args = realnode.Args(state)
	if supervise.Recorded(c.PidFile) != 0 {
		return c, nil
	}
	if err := EndMachine(ctx, n.ns, k.Dir.Cgroup(n.Name), c); err != nil {
		return c, err
	}
	identity, err := k.identity(n)
	if err := errors.Join(err, os.MkdirAll(state, 0o700)); err != nil {
		return c, err
	}
	distribution, err := k.BuiltIn.Root(ctx)
	if err == nil {
		err = k.Dir.SetTools(distribution)
	}
	if err != nil {
		return c, err
	}
	registries, err := imageservice.RegistryHosts(k.Dir.Node(n.Name))
	if err != nil {
		return c, err
	}
	images, err := k.Dir.Images()
	if err != nil {
		return c, err
	}
	object := plan.NodeObject(k.Cluster(), n.Node)
	var taints []realnode.Taint
	for _, t := range object.Spec.Taints {
		taints = append(taints, realnode.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	err = realnode.Config{
		Name: n.Name, State: state, Images: images, Base: k.Dir.ProgramsLayer(), Distribution: distribution,
		Kubernetes: identity, Cgroup: k.Dir.Cgroup(n.Name), Bounds: k.NodeBounds, ResolvConf: layout.ResolvConf(plan.NodeResolver(k.Cluster(), n.Node)),
		Registries: registries,
		Kubelet: realnode.KubeletConfig{
			Name: n.Name, Address: n.Address, ProviderID: object.Spec.ProviderID, Labels: plan.KubeletLabels(object), Taints: taints,
			MaxPods:      n.MaxPods,
			PodProcesses: k.PodProcesses, ClusterDNS: plan.PodResolver(k.Cluster(), n.Node),
		},
	}.Prepare()
	return c, err
}

// identity returns a real node's kubeconfig, as system:node:NAME, and the certificate that its kubelet serves with, as files.
func (k kubelets) identity(n *Node) (map[string][]byte, error) {
	now := time.Now()
	kubeconfig, err := k.Access.CA.Kubeconfig(k.Dir.Name(), k.Access.Config.Server(), controlplane.NodeUser(n.Name), now)
	if err != nil {
		return nil, err
	}
	serving, err := k.Access.CA.KubeletPair(n.Name, n.Address, now)
	if err != nil {
		return nil, err
	}
	agent, err := os.ReadFile(k.agentKubeconfig(n))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		realnode.KubeletKubeconfig: kubeconfig, realnode.ClientCA: k.Access.CA.Certificate, realnode.ServingCert: serving.Certificate,
		realnode.ServingKey: serving.Key, filepath.Base(realnode.NodeAgentKubeconfig): agent,
	}
	if k.Cluster().CalicoVersion() != "" {
		files[filepath.Base(realnode.FelixKubeconfig)], err = os.ReadFile(k.Dir.FelixKubeconfig(n.Name))
	}
	return files, err
}

// followPodCIDR writes the CNI configuration for the range that the API gives the node, and again when it gets another because it
// registered anew.
func (k kubelets) followPodCIDR(ctx context.Context, n *Node) error {
	for written := ""; ; {
		object, err := k.API.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil && object.Spec.PodCIDR != "" && object.Spec.PodCIDR != written {
			pods, err := netip.ParsePrefix(object.Spec.PodCIDR)
			if err == nil {
				err = k.writeConflist(n, pods)
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
