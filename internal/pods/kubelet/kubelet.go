package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/record"

	"packetwalk.dev/internal/base/tree"
	"packetwalk.dev/internal/pods/controllers"
)

// A Kubelet is one node's. Make it with New, then Run it.
type Kubelet struct {
	cfg      Config
	name     string
	node     *corev1.Node
	ip       netip.Addr // the node's
	net      network
	recorder record.EventRecorder
	factory  informers.SharedInformerFactory
	pods     coreinformers.PodInformer
	provider *nodeProvider
	ready    chan struct{}
	// processes is the node's process namespace.
	processes sandbox
	// A part of all kubelets' slots: pods of one node that hold them do not hold up the other nodes'.
	starts, measures slots
	// networked is closed when pods can be added to the network; nodeChanged tells of the Node object's changes.
	networked   chan struct{}
	nodeChanged chan struct{}

	ctx context.Context // of Run: the workers' life

	mu       sync.Mutex
	byID     map[types.UID]*worker
	current  map[string]*worker // by namespace/name: the newest
	notify   func(*corev1.Pod)
	troubles troubles
	faults   map[string]error // by task: what did not succeed when it was tried last
	group    sync.WaitGroup
}

// New checks the configuration and makes a kubelet that does nothing yet.
func New(cfg Config) (*Kubelet, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	k := &Kubelet{
		cfg: cfg, name: cfg.Node.Name, ready: make(chan struct{}), byID: make(map[types.UID]*worker), current: make(map[string]*worker),
		faults: make(map[string]error), starts: newStarts(), measures: make(slots, 4),
		net:      newCNI(cfg.CNIConfDir, cfg.CNIBinDirs, cfg.CNICacheDir, cfg.NodeNS),
		recorder: cfg.Shared.recorder(cfg.Node.Name), networked: make(chan struct{}), nodeChanged: make(chan struct{}, 1),
	}
	k.processes = sandbox{k: k, dir: filepath.Join(cfg.Dir, "processes")}
	k.node = completeNode(cfg.Node, cfg.Port, metav1.NewTime(cfg.Clock.Now()))
	k.node.Status.Images = cfg.Images()
	k.ip = nodeIP(cfg.Node)
	k.factory = newFactory(cfg.Client)
	mine := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", k.name).String()
		return o
	}
	pods := cfg.Client.CoreV1().Pods("")
	follow(k.factory, &corev1.Pod{}, k.troubles.note,
		func(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
			return pods.List(ctx, mine(o))
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return pods.Watch(ctx, mine(o))
		})
	k.pods = k.factory.Core().V1().Pods()
	k.provider = &nodeProvider{node: k.node}
	return k, nil
}

// Ready is closed when the node is registered, has its pod ranges if it waits for some, and pods that are bound to it are started.
func (k *Kubelet) Ready() <-chan struct{} { return k.ready }

// Run registers the node, takes over the pods that an earlier kubelet with the same Dir left, and runs pods until ctx ends. Pods run on
// then. It returns ctx's error, or why it could not go on.
func (k *Kubelet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k.ctx = ctx
	// Workers end with ctx; a stop that is under way is left alone.
	defer k.group.Wait()
	defer cancel()
	// What a pod has spoiled is its own node's loss, and keeps none from running.
	k.tried("make the node's own files", makeNodeFiles(k.hostRoot(), k.name))
	k.group.Go(func() { // what the first pod would wait for
		if _, err := k.holdProcesses(ctx); ctx.Err() == nil {
			k.tried("hold the node's processes", err)
		}
	})
	serve, err := k.listen(ctx)
	if err != nil {
		return err
	}
	nodes, pods, err := controllers.New(controllers.Config{
		Client: k.cfg.Client, Node: k.node, Health: k.provider, Pods: k.pods, Objects: k.cfg.Shared.factory, Recorder: k.recorder,
		Provider: k, LateFields: true,
	})
	if err != nil {
		return fmt.Errorf("kubelet %s: %w", k.name, err)
	}
	return k.runControllers(ctx, nodes, pods, serve)
}

// podWorkers is the number of pods whose objects are looked at, and whose statuses are written, at once.
const podWorkers = 4

func (k *Kubelet) runControllers(ctx context.Context, nodes *vknode.NodeController, pods *vknode.PodController, serve func() error) error {
	failed := make(chan error, 8)
	start := func(what string, f func() error) {
		k.group.Add(1)
		go func() {
			defer k.group.Done()
			if err := f(); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("kubelet %s: %s: %w", k.name, what, err)
			}
		}()
	}
	start("server", serve)
	start("node", func() error { return k.register(ctx, nodes) })
	k.factory.Start(ctx.Done())
	defer k.factory.Shutdown()
	if err := k.cfg.Shared.synced(ctx); err != nil {
		return err
	}
	if !waitSynced(ctx, k.pods.Informer().HasSynced) {
		return ctx.Err()
	}
	if err := k.restore(ctx); err != nil {
		return err
	}
	k.cfg.Shared.register(k, true)
	defer k.cfg.Shared.register(k, false)
	start("pods", func() error { return pods.Run(ctx, podWorkers) })
	start("statuses", func() error { return k.repair(ctx) })
	start("images", func() error { return k.followImages(ctx) })
	start("eviction", func() error { return k.measure(ctx) })
	if k.cfg.ConfigureCNI != nil {
		start("network", func() error { return k.followPodCIDRs(ctx) })
	} else {
		close(k.networked)
	}
	for _, c := range []<-chan struct{}{nodes.Ready(), pods.Ready(), k.networked} {
		select {
		case <-c:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	k.startWorkers()
	close(k.ready)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-failed:
		return err
	}
}

// register runs the node controller. It registers the node first, and again until the API server lets it.
func (k *Kubelet) register(ctx context.Context, nodes *vknode.NodeController) error {
	for try := 0; ; try++ {
		_, err := controllers.Register(ctx, k.cfg.Client, k.node)
		if k.tried("register node", err); err == nil {
			return nodes.Run(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(time.Duration(try+1)*100*time.Millisecond, 2*time.Second)):
		}
	}
}

func waitSynced(ctx context.Context, synced func() bool) bool {
	for !synced() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(2 * time.Millisecond):
		}
	}
	return true
}

// A Status is a summary of a kubelet.
type Status struct {
	Pods, Containers int   // pods on the node; containers that run
	Fault            error // what the kubelet could not do and no pod shows, joined; nil when all that was tried last was done
}

// Status tells how the kubelet is.
func (k *Kubelet) Status() Status {
	k.mu.Lock()
	var faults []error
	for _, task := range slices.Sorted(maps.Keys(k.faults)) {
		faults = append(faults, k.faults[task])
	}
	s := Status{Fault: errors.Join(append(faults, k.troubles.lasting())...)}
	k.mu.Unlock()
	for _, w := range k.workers() {
		w.mu.Lock()
		s.Pods++
		s.Containers += len(w.runs)
		w.mu.Unlock()
	}
	return s
}

// tried notes how a task went. One that did not succeed is a fault until it does.
func (k *Kubelet) tried(task string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		delete(k.faults, task)
		return
	}
	err = fmt.Errorf("%s: %w", task, err)
	k.faults[task] = err
	k.cfg.Log("kubelet %s: %v", k.name, err)
}

// PodNetNS is the path of the network namespace of a pod that is not on the host's network.
func (k *Kubelet) PodNetNS(namespace, name string) string {
	return filepath.Join(k.cfg.PodNetNSDir, namespace+"_"+name)
}

func (k *Kubelet) podDir(uid string) string { return filepath.Join(k.cfg.Dir, "pods", uid) }

// podDisk is where what a pod's containers write is.
func (k *Kubelet) podDisk(uid string) string { return filepath.Join(k.cfg.Disk, "pods", uid) }

// hostRoot is the tree of the node's own files.
func (k *Kubelet) hostRoot() string { return HostRoot(k.cfg.Disk) }

// HostRoot is the root of a node's own files, which containers may change, in Config.Disk.
func HostRoot(disk string) string { return filepath.Join(disk, "rootfs") }

func key(namespace, name string) string { return namespace + "/" + name }

func (k *Kubelet) byUID(uid types.UID) *worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.byID[uid]
}

func (k *Kubelet) byName(namespace, name string) *worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current[key(namespace, name)]
}

func (k *Kubelet) workers() []*worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]*worker, 0, len(k.byID))
	for _, w := range k.byID {
		list = append(list, w)
	}
	return list
}

// adopt makes the worker of a new pod and starts it.
func (k *Kubelet) adopt(pod *corev1.Pod) {
	var after <-chan struct{}
	if old := k.byName(pod.Namespace, pod.Name); old != nil {
		after = old.done
		old.delete(k.cfg.Clock.Now().Add(orphanGrace))
	}
	w := newWorker(k, pod, after)
	w.warn(notSupported(pod, k.cfg.Unbounded)...)
	k.admit(w)
	k.insert(w)
	k.launch(w)
}

func (k *Kubelet) insert(w *worker) {
	pod := w.pod()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.byID[pod.UID] = w
	k.current[key(pod.Namespace, pod.Name)] = w
}

func (k *Kubelet) launch(w *worker) {
	k.group.Add(1)
	go func() {
		defer k.group.Done()
		w.loop(k.ctx)
	}()
}

// startWorkers starts those that were restored: only now is there somebody who takes their status.
func (k *Kubelet) startWorkers() {
	for _, w := range k.workers() {
		if w.restored {
			k.launch(w)
		}
	}
}

// publish hands a pod's status to the controller that writes it.
func (k *Kubelet) publish(pod *corev1.Pod) {
	k.mu.Lock()
	notify := k.notify
	k.mu.Unlock()
	// The library goes by name alone: the status of a pod that was replaced must not reach its successor.
	if notify != nil && k.fromAPI(pod) != nil {
		notify(pod)
	}
}

// fromAPI is the pod as the API server has it, as far as the cache knows; nil if it is not there.
func (k *Kubelet) fromAPI(pod *corev1.Pod) *corev1.Pod {
	return controllers.FromAPI(k.pods, pod)
}

// changed is told of ConfigMaps, Secrets and Nodes that changed or went.
func (k *Kubelet) changed(kind, namespace, name string, gone bool) {
	if kind == "Node" {
		if name != k.name {
			return
		}
		if gone {
			k.provider.again()
		}
		select {
		case k.nodeChanged <- struct{}{}:
		default: // it has not looked since the last change
		}
		return
	}
	for _, w := range k.workers() {
		if w.pod().Namespace == namespace {
			w.changed(kind, name)
		}
	}
}

// finalize ends a pod that was deleted and of which nothing runs: its last status, then the object itself, then its directory. It reports
// false when ctx ended first.
func (k *Kubelet) finalize(ctx context.Context, w *worker) bool {
	pod := w.podWithStatus()
	for try := 1; ; try++ {
		err := k.finish(ctx, pod)
		if err != nil && ctx.Err() != nil {
			return false
		}
		if k.tried("delete pod "+podRef(pod), err); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(min(time.Duration(try)*250*time.Millisecond, 5*time.Second)):
		}
	}
	w.cleanup.Wait()
	w.mu.Lock()
	w.gone = true // whoever still asks for its deletion must not bring the state file back
	w.mu.Unlock()
	k.tried("remove the directory of pod "+podRef(pod), errors.Join(w.unmountVolumes(), tree.Remove(w.disk), os.RemoveAll(w.dir)))
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byID, pod.UID)
	if name := key(pod.Namespace, pod.Name); k.current[name] == w {
		delete(k.current, name)
	}
	return true
}

// finish tells the API server that the pod is gone.
func (k *Kubelet) finish(ctx context.Context, pod *corev1.Pod) error {
	if k.fromAPI(pod) == nil {
		return nil
	}
	last := pod.DeepCopy()
	last.ResourceVersion = "" // unconditional: a kubelet alone writes a pod's status
	_, err := k.cfg.Client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, last, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return controllers.Delete(ctx, k.cfg.Client, pod)
}
