package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/azure/instances"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/pods/container"
)

// A lab is a cluster that this process keeps up.
type lab struct {
	dir     Dir
	bin     Binaries
	cluster *cluster.Cluster
	log     *slog.Logger
	begin   time.Time
	say     func(Step)

	fabric  *fabric.Fabric
	runtime *container.Runtime
	plane   controlplane.Config
	ca      *controlplane.Authority
	planeNS *kernel.Namespace
	client  *kubernetes.Clientset
	server  string // the API server's address on this machine

	kubelets   kubelets
	stopRoutes context.CancelFunc // ends the route controller; nil where there is none

	ready    atomic.Bool
	pid      int
	changing sync.Mutex       // of changes of cluster and nodes
	busy     atomic.Bool      // a change is being made
	planned  *cluster.Cluster // what the network was brought to last; a change that failed later is not in cluster

	mu         sync.Mutex // of what follows
	components []*process
	nodes      []*node
	hosts      []*host
	resolvers  []*host           // name servers outside the cluster
	groups     *instances.Groups // nil without a virtual node
	undone     map[task]error    // what did not succeed when it was tried last
}

// Run is the lab process: it brings the lab of the directory up, or takes it over from a process that died, reports its steps on
// progress and keeps it up until ctx ends. Then it ends, and nothing else does: Destroy removes a lab.
func Run(ctx context.Context, d Dir, bin Binaries, progress *os.File) error {
	l := &lab{dir: d, bin: bin, begin: time.Now(), pid: os.Getpid(), log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	l.runtime = &container.Runtime{Binary: bin.App, Base: d.containersBase(), Programs: map[string]string{
		"coredns": bin.ControlPlane, "nginx-ingress-controller": bin.Addon, "external-dns": bin.Addon, "virtual-kubelet": bin.Addon,
	}}
	l.say = reporter(progress, l.begin)
	err := l.up(ctx)
	if err != nil {
		l.say(Step{Error: err.Error()})
		return err
	}
	l.ready.Store(true)
	l.say(Step{Ready: true})
	progress.Close()
	l.log.Info("the cluster is ready", "seconds", time.Since(l.begin).Seconds())
	l.startAddons(ctx)
	<-ctx.Done()
	return nil
}

// reporter writes steps as JSON, one a line. The reader may go away at any time.
func reporter(w io.Writer, begin time.Time) func(Step) {
	var mu sync.Mutex
	return func(s Step) {
		mu.Lock()
		defer mu.Unlock()
		s.Seconds = time.Since(begin).Seconds()
		line, _ := json.Marshal(s)
		_, _ = w.Write(append(line, '\n'))
	}
}

func (l *lab) done(format string, a ...any) { l.say(Step{Text: fmt.Sprintf(format, a...)}) }

// up starts everything in the order that gets to a ready cluster soonest: the control plane takes by far the longest, so it
// comes first and everything that does not need it is made meanwhile.
func (l *lab) up(ctx context.Context) error {
	if err := l.dir.claim(); err != nil {
		return err
	}
	cut, err := l.readCluster()
	if err != nil {
		return err
	}
	if err := l.startFabric(ctx); err != nil {
		return err
	}
	if err := l.resumeNetwork(ctx, &cut); err != nil {
		return err
	}
	if err := l.prepareControlPlane(ctx); err != nil {
		return err
	}
	var g errgroup.Group
	ready := make(chan struct{})
	g.Go(func() error { return l.startControl(ctx) })
	g.Go(func() error { return l.startInstances(ctx) })
	g.Go(func() error { return l.startHosts(ctx) })
	g.Go(func() error { return l.startResolvers(ctx) })
	g.Go(func() error { return l.startControlPlane(ctx, ready) })
	g.Go(func() error {
		if err := l.makeNodes(ctx); err != nil {
			return err
		}
		if err := l.connect(ctx); err != nil {
			return err
		}
		return l.startCluster(ctx, ready)
	})
	if err := g.Wait(); err != nil {
		return err
	}
	l.resumeNodes(ctx, cut)
	return nil
}

func (l *lab) startFabric(ctx context.Context) error {
	network, err := networkOf(l.cluster)
	if err != nil {
		return err
	}
	l.fabric, err = fabric.New(fabric.Config{Dir: l.dir.path("netns"), Network: network, StateFile: l.dir.fabricState(), Log: l.log.With("part", "fabric")})
	if err != nil {
		return err
	}
	if err := l.fabric.Start(ctx); err != nil {
		return fmt.Errorf("start the fabric: %w", err)
	}
	return nil
}

// prepareControlPlane makes the control plane's files, its namespace, and the two ways to and from it: the forwarder on 127.0.0.1
// and the egress proxy to nodes and pods.
func (l *lab) prepareControlPlane(ctx context.Context) error {
	l.plane = controlplane.Config{
		Dir: string(l.dir), Binary: l.bin.ControlPlane, ClusterName: l.cluster.Metadata.Name, Address: vnet.APIServerAddress,
		ServiceCIDR: l.cluster.Spec.Network.ServiceCIDR, PodCIDR: l.cluster.Spec.Network.PodCIDR, EgressSocket: l.dir.EgressSocket(),
	}
	var err error
	if l.ca, err = controlplane.Prepare(l.plane, time.Now()); err != nil {
		return fmt.Errorf("prepare the control plane: %w", err)
	}
	if l.planeNS, err = l.attachHost(controlPlaneHost); err != nil {
		return err
	}
	egress, err := listenUnix(ctx, l.dir.EgressSocket())
	if err != nil {
		return err
	}
	go serveEgress(ctx, egress, l.route)
	local, err := listenForwarder(l.dir)
	if err != nil {
		return fmt.Errorf("listen for the API server: %w", err)
	}
	go forward(ctx, local, l.planeNS.Dial, l.serverAddress())
	l.server = "https://" + local.Addr().String()
	if err := writeKubeconfig(l.dir, l.ca, l.server); err != nil {
		return err
	}
	return nil
}

func (l *lab) serverAddress() string {
	return netip.AddrPortFrom(l.plane.Address, controlplane.Port).String()
}

// attachHost makes an internet host's namespace and wires it to the internet.
func (l *lab) attachHost(name string) (*kernel.Namespace, error) {
	ns, _, err := kernel.EnsureNamespace(l.dir.NetNS(name))
	if err != nil {
		return nil, err
	}
	return ns, l.fabric.AttachHost(name, ns)
}

// patience is how long the control plane may take to start; a busy machine needs some seconds.
const patience = time.Minute

// startControlPlane starts upstream's processes, waits until they are ready, and then closes ready.
func (l *lab) startControlPlane(ctx context.Context, ready chan<- struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := l.ca.Launch(ctx, l.plane.Components(), l.planeNS.Dial, func(c controlplane.Component) error {
		p, err := l.keep(l.planeNS, command{name: c.Name, path: c.Path, args: c.Args, log: c.LogFile, pid: c.PidFile})
		if err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.components = append(l.components, p)
		return nil
	})
	if err != nil {
		return err
	}
	close(ready)
	l.done("control plane ready")
	return nil
}

// connect waits until the API server serves requests, which is a second before it calls itself ready, and makes the client that
// the lab's own parts use.
func (l *lab) connect(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, c := range l.plane.Components() {
		if c.Name != controlplane.APIServer {
			continue
		}
		if err := l.ca.WaitServing(waiting, c, l.planeNS.Dial); err != nil {
			return err
		}
	}
	l.done("API server answers")
	var err error
	if l.client, err = l.clientAs(controlplane.Admin); err != nil {
		return err
	}
	return controlplane.ApplyBootstrap(ctx, l.client.RbacV1())
}

func (l *lab) clientAs(user controlplane.User) (*kubernetes.Clientset, error) {
	kubeconfig, err := l.ca.Kubeconfig(l.dir.Name(), l.plane.Server(), user, time.Now())
	if err != nil {
		return nil, err
	}
	return clientFor(kubeconfig, l.planeNS.Dial)
}

// startControl answers the command line.
func (l *lab) startControl(ctx context.Context) error {
	socket, err := listenUnix(ctx, l.dir.Socket())
	if err != nil {
		return err
	}
	go func() {
		if err := serveControl(ctx, socket, l); err != nil {
			l.log.Error("control socket", "err", err)
		}
	}()
	return nil
}

// listenUnix listens on a unix socket, taking the place of one that a dead process left.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "unix", path)
}

// route chooses where the API server's connection to a node, pod or service is opened: at the node itself, else at any node.
func (l *lab) route(target netip.AddrPort) dialFunc {
	l.mu.Lock()
	defer l.mu.Unlock()
	var any dialFunc
	for _, n := range l.nodes {
		if n.Address == target.Addr() {
			return n.ns.Dial
		}
		if any == nil {
			any = n.ns.Dial // the first: nodes leave from the end
		}
	}
	return any
}
