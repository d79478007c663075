package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/removetree"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/hostns"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/safepath"
)

// StateRoot is where labs keep what their nodes have on disk: a directory for each lab, on a file system that overlayfs can write to and
// that is no memory, as /run is.
const StateRoot = "/var/lib/packetwalk"

// State is the directory of what the lab's nodes have on disk.
func (d Dir) State() string { return filepath.Join(StateRoot, d.Name()) }

func (d Dir) nodeState(node string) string { return filepath.Join(d.State(), "nodes", node) }

// cgroup is the control group of a real node, or of all of the lab's without a name, below the root of each hierarchy.
func (d Dir) cgroup(node string) string { return filepath.Join("packetwalk", d.Name(), node) }

// machinePid is the pid file of a real node's first process.
func (d Dir) machinePid(node string) string { return filepath.Join(d.Node(node), machinePidFile) }

// machineLog is the log of what goes wrong before a real node has one of its own.
func (d Dir) machineLog(node string) string { return d.Log(node + ".machine") }

// realNodes is what all real nodes of a lab share: a layer of their roots.
type realNodes struct {
	once sync.Once
	err  error
}

// programsLayer is what nodes have of containerd, kubelet and what they start.
func (d Dir) programsLayer() string { return filepath.Join(d.State(), "programs") }

// prepare makes what is shared, once for a lab. What is there stays: nodes have it mounted.
func (r *realNodes) prepare(d Dir, bin Binaries, c *cluster.Cluster) error {
	r.once.Do(func() { r.err = r.make(d, bin, c) })
	return r.err
}

func (r *realNodes) make(d Dir, bin Binaries, c *cluster.Cluster) error {
	programs, plugins, err := bin.realNode()
	if err != nil {
		return err
	}
	felix, err := bin.felixProgram(c)
	if err != nil {
		return err
	}
	if felix != "" {
		programs[filepath.Base(realnode.Felix)] = felix
	}
	if err := os.MkdirAll(d.State(), 0o700); err != nil {
		return err
	}
	if err := errors.Join(cgroup.MakeAll(d.cgroup("")), d.placeNodes()); err != nil {
		return err
	}
	base := d.programsLayer()
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
	if err := l.real.prepare(l.dir, l.bin, l.cluster()); err != nil {
		return err
	}
	c, err := l.machineProcess(ctx, n)
	if err != nil {
		return err
	}
	machine, err := l.runWith(c, func(cmd *exec.Cmd) error { return realnode.Start(cmd, n.ns.Start) })
	if err != nil {
		return err
	}
	l.mu.Lock()
	n.machine = machine
	l.mu.Unlock()
	l.attend(ctx, n)
	if err := l.waitNode(ctx, n); err != nil {
		return fmt.Errorf("kubelet of %s: %w; the ends of its logs:%s%s", n.Name, err, supervise.LastLines(l.dir.machineLog(n.Name)),
			lastLines(l.dir.nodeState(n.Name), "log/kubelet.log"))
	}
	return l.labelNode(ctx, n)
}

// labelNode gives a node's object the labels that its kubelet may not.
func (l *nodes) labelNode(ctx context.Context, n *node) error {
	_, err := l.patched(ctx, n.Name,
		map[string]any{"metadata": map[string]any{"labels": plan.AdminLabels(plan.NodeObject(l.cluster(), n.Node))}})
	return err
}

// attend does for a real node what goes on while it runs: it gets images from the lab's registry, and with kubenet the configuration of
// its range of pods.
func (l *nodes) attend(ctx context.Context, n *node) {
	life, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	served := l.keep(life, "the registry of "+n.Name, func(ctx context.Context) error {
		return l.library.serveRegistry(ctx, l.access.ca, n.ns, l.dir.Node(n.Name))
	})
	beside.Go(func() { <-served })
	if l.cluster().Spec.Network.Plugin == cluster.PluginKubenet {
		followed := l.keep(life, "the pod network of "+n.Name, func(ctx context.Context) error { return l.followPodCIDR(ctx, n) })
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
	if err := endOthers(ctx, ns, first); err != nil {
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
		Name: n.Name + ".machine", Path: l.bin.App, LogFile: l.dir.machineLog(n.Name), PidFile: l.dir.machinePid(n.Name),
	}
	state := l.dir.nodeState(n.Name)
	c.Args = realnode.Args(state)
	if supervise.Recorded(c.PidFile) != 0 {
		return c, nil
	}
	if err := endMachine(ctx, n.ns, l.dir.cgroup(n.Name), c); err != nil {
		return c, err
	}
	identity, err := l.identity(n)
	if err := errors.Join(err, os.MkdirAll(state, 0o700)); err != nil {
		return c, err
	}
	distribution, err := l.builtIn.Root(ctx)
	if err != nil {
		return c, err
	}
	registries, err := registries(l.dir.Node(n.Name))
	if err != nil {
		return c, err
	}
	object := plan.NodeObject(l.cluster(), n.Node)
	var taints []realnode.Taint
	for _, t := range object.Spec.Taints {
		taints = append(taints, realnode.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	err = realnode.Config{
		Name: n.Name, State: state, Base: l.dir.programsLayer(), Distribution: distribution,
		Networks: filepath.Join(l.dir.Node(n.Name), "cni", "net.d"), Kubernetes: identity,
		Cgroup: l.dir.cgroup(n.Name), Bounds: l.nodeBounds, ResolvConf: resolvConf(plan.AzureResolver),
		Registries: registries,
		Kubelet: realnode.KubeletConfig{
			Name: n.Name, Address: n.Address, ProviderID: object.Spec.ProviderID, Labels: plan.KubeletLabels(object), Taints: taints,
			MaxPods:      n.MaxPods,
			PodProcesses: l.podProcesses, ClusterDNS: l.cluster().Spec.Network.DNSServiceIP,
		},
	}.Prepare()
	return c, err
}

// identity is a real node's kubeconfig, as system:node:NAME, and the certificate that its kubelet serves with, as files.
func (l *nodes) identity(n *node) (map[string][]byte, error) {
	now := time.Now()
	kubeconfig, err := l.access.ca.Kubeconfig(l.dir.Name(), l.access.plane.Server(), controlplane.NodeUser(n.Name), now)
	if err != nil {
		return nil, err
	}
	serving, err := l.access.ca.KubeletPair(n.Name, n.Address, now)
	if err != nil {
		return nil, err
	}
	agent, err := os.ReadFile(l.agentKubeconfig(n))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		realnode.KubeletKubeconfig: kubeconfig, realnode.ClientCA: l.access.ca.Certificate, realnode.ServingCert: serving.Certificate,
		realnode.ServingKey: serving.Key, filepath.Base(realnode.NodeAgentKubeconfig): agent,
	}
	if l.cluster().CalicoVersion() != "" {
		files[filepath.Base(realnode.FelixKubeconfig)], err = os.ReadFile(l.dir.felixKubeconfig(n.Name))
	}
	return files, err
}

// followPodCIDR writes the CNI configuration for the range that the API gives the node, and again when it gets another because it
// registered anew.
func (l *nodes) followPodCIDR(ctx context.Context, n *node) error {
	for written := ""; ; {
		object, err := l.api.client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
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
			wait = keepSteady
		}
		if !pause.For(ctx, wait) {
			return ctx.Err()
		}
	}
}

// realPods are the pods of the lab's real nodes that have a network namespace of their own, by NAMESPACE/NAME.
func (d Dir) realPods() (map[string]hostns.Pod, error) {
	all := map[string]hostns.Pod{}
	machines, _ := filepath.Glob(d.machinePid("*")) // the pattern is well formed
	for _, file := range machines {
		pods, err := d.podsOf(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		maps.Copy(all, pods)
	}
	return all, nil
}

func (d Dir) podsOf(node string) (map[string]hostns.Pod, error) {
	ns, err := netns.Open(d.NetNS(node))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	logs, err := safepath.Open(d.nodeState(node), "log/pods")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has had no pod
	}
	if err != nil {
		return nil, err
	}
	defer logs.Close()
	return hostns.Pods("/"+d.cgroup(node), fmt.Sprintf("/proc/self/fd/%d", logs.Fd()), ns.Inode())
}

// sandboxName is what containerd calls a pod's sandbox.
var sandboxName = regexp.MustCompile(`^[0-9a-f]{64}$`)

// sandboxResolvConf is what the containers of a real node's pod have as /etc/resolv.conf; nil where it is not there.
func (d Dir) sandboxResolvConf(sandbox string) []byte {
	if !sandboxName.MatchString(sandbox) {
		return nil
	}
	nodes, _ := filepath.Glob(d.nodeState("*")) // the pattern is well formed
	for _, state := range nodes {
		if text := resolvConfIn(state, sandbox); text != nil {
			return text
		}
	}
	return nil
}

// sandboxes is where a machine's containerd has what it knows of sandboxes, below the machine's state.
const sandboxes = "containerd/io.containerd.grpc.v1.cri/sandboxes"

// resolvConfIn is what a sandbox's containers have as /etc/resolv.conf; nil where the machine has no such sandbox.
func resolvConfIn(state, sandbox string) []byte {
	f, err := openOf(state, filepath.Join(sandboxes, sandbox, resolvFile))
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := limitio.Read(f, maxResolvConf)
	if err != nil {
		return nil
	}
	return text
}

// groupResolvConf is what a container group's containers have as /etc/resolv.conf; nil where none has been started. Its machine has one
// pod.
func (d Dir) groupResolvConf(group string) []byte {
	state, err := safepath.Open(d.groupState(group))
	if err != nil {
		return nil
	}
	defer state.Close()
	dir, err := safepath.In(state, sandboxes, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxSandboxes) // what can be read of them
	for _, sandbox := range names {
		if sandboxName.MatchString(sandbox) {
			if text := resolvConfIn(d.groupState(group), sandbox); text != nil {
				return text
			}
		}
	}
	return nil
}

// maxSandboxes is how many sandboxes of a group's machine are looked at: the one there is, and what is left of those before.
const maxSandboxes = 100

// maxResolvConf is the most that is read of a pod's resolv.conf, bytes.
const maxResolvConf = 64 << 10

// openOf opens a regular file of a real node's own, for reading. What the node's processes have put on the way leads nowhere else, and
// keeps nobody waiting.
func openOf(state, name string) (*os.File, error) {
	dir, err := safepath.Open(state)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := safepath.In(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s of a node is no regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lastLines are the last lines of a real node's log, for an error.
func lastLines(state, name string) string {
	f, err := openOf(state, name)
	if err != nil {
		return ""
	}
	defer f.Close()
	return supervise.LastLinesOf(f)
}

// removeMachine takes away what a real node, whose processes have ended, leaves of itself. What is not there is no error.
func (d Dir) removeMachine(node string) error {
	return errors.Join(cgroup.Remove(d.cgroup(node)), removetree.Remove(d.nodeState(node)))
}

// removeState takes away what all nodes leave.
func (d Dir) removeState() error {
	err := errors.Join(cgroup.Remove(d.cgroup("")), unmountBelow(d.State()))
	if err == nil {
		err = removetree.Remove(d.State())
	}
	_ = os.Remove(StateRoot) // only when this was the last lab
	return err
}

// realNode finds the programs of real nodes, where links lead, and their CNI plugins; it says what is missing.
func (b Binaries) realNode() (programs map[string]string, plugins []string, err error) {
	find := func(name string) string {
		path, e := filepath.EvalSymlinks(filepath.Join(b.RealNode, name))
		if e != nil && err == nil {
			err = fmt.Errorf("nodes need %s, which is not in %s; 'make controlplane' makes it", name, b.RealNode)
		}
		return path
	}
	programs, plugins = map[string]string{filepath.Base(realnode.NodeAgent): b.Node}, []string{b.CNI, b.PortMap}
	for _, name := range realnode.Programs {
		programs[name] = find(name)
	}
	for _, name := range realnode.Plugins {
		plugins = append(plugins, find(name))
	}
	return programs, plugins, err
}
