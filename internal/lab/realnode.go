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
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/bounded"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/kernel/here"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/realnode"
)

// StateRoot is where labs keep what their real nodes have on disk: a directory for each lab, on a file system that overlayfs can write to
// and that is no memory, as /run is.
const StateRoot = "/var/lib/packetwalk"

// State is the directory of what the lab's real nodes have on disk; it is there only with such nodes.
func (d Dir) State() string { return filepath.Join(StateRoot, d.Name()) }

func (d Dir) nodeState(node string) string { return filepath.Join(d.State(), "nodes", node) }

// cgroup is the control group of a real node, or of all of the lab's without a name, below the root of each hierarchy.
func (d Dir) cgroup(node string) string { return filepath.Join("packetwalk", d.Name(), node) }

// machinePid is the pid file of a real node's first process.
func (d Dir) machinePid(node string) string { return filepath.Join(d.Node(node), "machine.pid") }

// machineLog is the log of what goes wrong before a real node has one of its own.
func (d Dir) machineLog(node string) string { return d.Log(node + ".machine") }

// realNodes is what all real nodes of a lab share: a layer of their roots, and the image of the pods' sandboxes.
type realNodes struct {
	once, images sync.Once
	err          error
	programs     map[string]string // by their names
}

func (d Dir) imageArchives() string { return filepath.Join(d.State(), "images") }

// prepare makes what is shared, once for a lab. What is there stays: nodes have it mounted.
func (r *realNodes) prepare(d Dir, bin Binaries) error {
	r.once.Do(func() { r.err = r.make(d, bin) })
	return r.err
}

func (r *realNodes) make(d Dir, bin Binaries) error {
	programs, plugins, err := bin.realNode()
	if err != nil {
		return err
	}
	r.programs = programs
	if err := os.MkdirAll(d.imageArchives(), 0o700); err != nil {
		return err
	}
	base := filepath.Join(d.State(), "base")
	if _, err := os.Stat(base); err == nil {
		return nil
	}
	partial := base + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	if err := realnode.WriteBase(partial, runc, plugins); err != nil {
		return err
	}
	return os.Rename(partial, base)
}

// startMachine starts a real node, or takes over the one that runs, and returns when it is Ready.
func (l *nodes) startMachine(ctx context.Context, n *node) error {
	if err := l.real.prepare(l.dir, l.bin); err != nil {
		return err
	}
	images, err := l.systemImages()
	if err != nil {
		return err
	}
	l.real.images.Do(func() { go images.writeAll(ctx, l.core) })
	c, err := l.machineProcess(ctx, n, images.names)
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
	life, stop := context.WithCancel(ctx)
	n.stop = stop
	l.keep(life, "the registry of "+n.Name, func(ctx context.Context) error { return l.serveRegistry(ctx, n) })
	if l.cluster().Spec.Network.Plugin == cluster.PluginKubenet {
		n.done = l.keep(life, "the pod network of "+n.Name, func(ctx context.Context) error { return l.followPodCIDR(ctx, n) })
	} else {
		over := make(chan struct{})
		close(over)
		n.done = over
	}
	if err := l.waitNodeReady(ctx, n); err != nil {
		return fmt.Errorf("kubelet of %s: %w; the ends of its logs:%s%s", n.Name, err, supervise.LastLines(l.dir.machineLog(n.Name)),
			supervise.LastLines(filepath.Join(l.dir.nodeState(n.Name), "log", "kubelet.log")))
	}
	_, err = l.patched(ctx, n.Name,
		map[string]any{"metadata": map[string]any{"labels": plan.AdminLabels(plan.NodeObject(l.cluster(), n.Node))}})
	return err
}

// machineProcess writes what a real node is made of, unless it runs, and gives its first process.
func (l *nodes) machineProcess(ctx context.Context, n *node, images []string) (supervise.Process, error) {
	c := supervise.Process{
		Name: n.Name + ".machine", Path: l.bin.App, LogFile: l.dir.machineLog(n.Name), PidFile: l.dir.machinePid(n.Name),
	}
	state := l.dir.nodeState(n.Name)
	c.Args = realnode.Args(state)
	if supervise.Recorded(c.PidFile) != 0 {
		return c, nil
	}
	own := filepath.Join(l.dir.Node(n.Name), "kubernetes")
	if err := errors.Join(os.MkdirAll(state, 0o700), l.writeIdentity(n, own)); err != nil {
		return c, err
	}
	distribution, err := l.runtime.Base(ctx)
	if err != nil {
		return c, err
	}
	registries, err := l.registries(n)
	if err != nil {
		return c, err
	}
	object := plan.NodeObject(l.cluster(), n.Node)
	err = realnode.Config{
		Name: n.Name, State: state, Base: filepath.Join(l.dir.State(), "base"), Distribution: distribution, Programs: l.real.programs,
		Networks: filepath.Join(l.dir.Node(n.Name), "cni", "net.d"), Kubernetes: own, Images: l.dir.imageArchives(),
		Archives: images[:1], Later: images[1:], Cgroup: l.dir.cgroup(n.Name), ResolvConf: resolvConf(plan.AzureResolver),
		Registries: registries,
		Kubelet: realnode.KubeletConfig{
			Name: n.Name, Address: n.Address, ProviderID: object.Spec.ProviderID, Labels: plan.KubeletLabels(object), MaxPods: n.MaxPods,
			ClusterDNS: l.cluster().Spec.Network.DNSServiceIP,
		},
	}.Prepare()
	return c, err
}

// writeIdentity writes a real node's kubeconfig, as system:node:NAME, and the certificate that its kubelet serves with.
func (l *nodes) writeIdentity(n *node, dir string) error {
	now := time.Now()
	kubeconfig, err := l.access.ca.Kubeconfig(l.dir.Name(), l.access.plane.Server(), controlplane.NodeUser(n.Name), now)
	if err != nil {
		return err
	}
	serving, err := l.access.ca.KubeletPair(n.Name, n.Address, now)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		realnode.KubeletKubeconfig: kubeconfig, realnode.ClientCA: l.access.ca.Certificate, realnode.ServingCert: serving.Certificate,
		realnode.ServingKey: serving.Key,
	} {
		if err := atomicfile.Write(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// lookPause is between two looks at a node that is waited for.
const lookPause = 100 * time.Millisecond

// waitNodeReady waits until the API has the node Ready.
func (l *nodes) waitNodeReady(ctx context.Context, n *node) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not ready within %v", patience))
	defer cancel()
	for {
		object, err := l.api.client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err == nil && isReady(object) {
			return nil
		}
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			return err
		}
		if !pause.For(ctx, lookPause) {
			return context.Cause(ctx)
		}
	}
}

func isReady(n *corev1.Node) bool {
	c := readyCondition(n)
	return c != nil && c.Status == corev1.ConditionTrue
}

func readyCondition(n *corev1.Node) *corev1.NodeCondition {
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 {
		return nil
	}
	return &n.Status.Conditions[i]
}

// askTime is how long the API may take to tell a status how a node is.
const askTime = time.Second

// realStatus is how many pods with networks of their own run on a real node, -1 when that is not known, and what is wrong with it.
func (l *nodes) realStatus(n *node) (pods int, problem string) {
	there, err := l.dir.podsOf(n.Name)
	if err != nil {
		return -1, oneLine(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	object, err := l.api.client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return len(there), oneLine(err)
	}
	if c := readyCondition(object); c != nil && c.Status != corev1.ConditionTrue {
		return len(there), "not Ready: " + c.Message
	}
	return len(there), ""
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
func (d Dir) realPods() (map[string]here.Pod, error) {
	all := map[string]here.Pod{}
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

func (d Dir) podsOf(node string) (map[string]here.Pod, error) {
	ns, err := kernel.OpenNamespace(d.NetNS(node))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return here.Pods("/"+d.cgroup(node), filepath.Join(d.nodeState(node), "log", "pods"), ns.Inode())
}

// sandboxResolvConf is what the containers of a real node's pod have as /etc/resolv.conf; nil where it is not there.
func (d Dir) sandboxResolvConf(sandbox string) []byte {
	files, _ := filepath.Glob(filepath.Join(d.nodeState("*"), "containerd", "io.containerd.grpc.v1.cri", "sandboxes", sandbox, resolvFile))
	for _, file := range files {
		if text, err := bounded.ReadFile(file, maxResolvConf); err == nil {
			return text
		}
	}
	return nil
}

// maxResolvConf is the most that is read of a pod's resolv.conf, bytes.
const maxResolvConf = 64 << 10

// removeMachine takes away what a real node, whose processes have ended, leaves of itself. What is not there is no error.
func (d Dir) removeMachine(node string) error {
	return errors.Join(cgroup.Remove(d.cgroup(node)), os.RemoveAll(d.nodeState(node)))
}

// removeState takes away what all real nodes leave.
func (d Dir) removeState() error {
	err := errors.Join(cgroup.Remove(d.cgroup("")), os.RemoveAll(d.State()))
	_ = os.Remove(StateRoot) // only when this was the last lab
	return err
}

// realNode finds the programs of real nodes, where links lead, and their CNI plugins; it says what is missing.
func (b Binaries) realNode() (programs map[string]string, plugins []string, err error) {
	if _, err := os.Stat(runc); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("nodes with runtime containerd need %s; install it: apt-get install runc", runc)
	}
	find := func(name string) string {
		path, e := filepath.EvalSymlinks(filepath.Join(b.RealNode, name))
		if e != nil && err == nil {
			err = fmt.Errorf("nodes with runtime containerd need %s, which is not in %s; 'make realnode' makes it", name, b.RealNode)
		}
		return path
	}
	programs, plugins = map[string]string{}, []string{b.CNI, b.PortMap}
	for _, name := range realnode.Programs {
		programs[name] = find(name)
	}
	for _, name := range realnode.Plugins {
		plugins = append(plugins, find(name))
	}
	return programs, plugins, err
}

// runc is where the distribution's package has it.
const runc = "/usr/sbin/runc"
