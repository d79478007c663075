package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/preflight"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/pods/source"
)

// A lab is a cluster that this process keeps up: a list of parts.
type lab struct {
	*core
	parts  parts
	azure  *azure
	nodes  *nodes
	groups *groups
	cut    cutOff

	ready    chan struct{} // closes when the cluster is ready
	isReady  atomic.Bool
	changing sync.Mutex  // of changes of cluster and nodes
	busy     atomic.Bool // a change is being made
}

// newLab lists a lab's parts. The control plane takes by far the longest to start, so that everything which does not need it is made
// meanwhile.
func newLab(d layout.Dir, bin layout.Binaries, say func(Step)) *lab {
	c := &core{dir: d, bin: bin, say: say, broken: make(chan error, 1), log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	images := &library{core: c}
	c.builtIn = &source.BuiltIn{
		Program: bin.App, Base: bin.Base, Roots: source.RootsDir, Open: images.open, Brought: map[string]string{
			"coredns": bin.ControlPlane, "nginx-ingress-controller": bin.Addon, "external-dns": bin.Addon, "virtual-kubelet": bin.Addon,
			"dns": bin.DNS, "metrics-server": bin.MetricsServer(),
		},
	}
	l := &lab{core: c, ready: make(chan struct{})}
	l.azure = &azure{core: c, cut: &l.cut}
	l.nodes = &nodes{core: c, azure: l.azure, library: images}
	access := &access{core: c, azure: l.azure, nodes: l.nodes}
	api := &api{processes: processes{core: c, access: access}}
	routes := &routes{core: c, azure: l.azure, api: api}
	l.nodes.access, l.nodes.api, l.nodes.routes = access, api, routes
	l.groups = &groups{core: c, azure: l.azure, access: access, library: l.nodes.library, real: &l.nodes.real}

	ps := &l.parts
	ps.place("the control socket", startOnly{start: l.startControl})
	ps.place("Azure's network", l.azure)
	ps.place("optional kernel features", &optionalFeatures{core: c, check: preflight.Check})
	ps.place("bounds of containers", &bounds{core: c}, "optional kernel features")
	ps.place("VMs and internet hosts", &hosts{apps: apps{c}, azure: l.azure, cut: &l.cut}, "Azure's network", "bounds of containers")
	ps.place("the name servers", &resolvers{apps: apps{c}, azure: l.azure}, "Azure's network", "bounds of containers")
	ps.place("the control plane's files", access, "Azure's network")
	ps.place("images", l.nodes.library)
	ps.place("the nodes' machines", machines{nodes: l.nodes}, "the control plane's files", "bounds of containers")
	ps.place("container instances", l.groups, "the control plane's files", "images", "bounds of containers")
	ps.place("the API server", api, "the control plane's files")
	ps.place("the control plane", &plane{processes{core: c, access: access}}, "the API server")
	ps.place("the service controller", &services{core: c, azure: l.azure, api: api}, "the API server")
	ps.place("Calico's resources", &calico{core: c, api: api}, "the API server")
	ps.place("the ip-masq-agent's configuration", &masq{core: c, api: api, nodes: l.nodes}, "the control plane")
	ps.place("the service account of pods", startOnly{start: api.waitDefaultAccount}, "the API server")
	ps.place("the nodes' agents", agents{nodes: l.nodes}, "the nodes' machines", "Calico's resources", "the ip-masq-agent's configuration")
	ps.place("the nodes", l.nodes, "the nodes' machines", "the API server", "images")
	ps.place("the network policy engine", newPolicyEngine(l.nodes), "the nodes' agents", "the nodes")
	ps.place("the route controller", routes, "the nodes")
	ps.place("the virtual node", &virtualNode{core: c, access: access, api: api}, "container instances", "the nodes' agents", "the nodes")
	ps.place("the cluster's DNS and addons", &addons{core: c, api: api, ready: l.ready}, "the API server")
	ps.place("the watch of what has no effect", &policies{core: c, api: api}, "the API server")
	ps.place("the provisioner of volumes", &storage{core: c, api: api, nodes: l.nodes, ready: l.ready}, "the API server")
	return l
}

// Run is the lab process: it brings the lab of the directory up, or takes it over from a process that died, reports its steps on
// progress and keeps it up until ctx ends. A lab that is not up within the timeout is an error. When ctx ends this process ends, and
// nothing else does: Destroy removes a lab.
func Run(ctx context.Context, d layout.Dir, bin layout.Binaries, timeout time.Duration, progress *os.File) error {
	unix.Umask(0o022) // whatever the caller's is: users of all kinds in pods read what is made for them
	begin := time.Now()
	l := newLab(d, bin, reporter(progress, begin))
	go supervise.BoundLog(ctx, d.Log("lab"))
	if err := l.up(ctx, newDeadline(timeout)); err != nil {
		l.say(Step{Error: err.Error()})
		return err
	}
	l.say(Step{Ready: true})
	progress.Close()
	l.log.Info("the cluster is ready", "seconds", time.Since(begin).Seconds())
	<-ctx.Done()
	l.parts.stop()
	return nil
}

func (l *lab) up(ctx context.Context, d deadline) error {
	if err := l.dir.Claim(); err != nil {
		return err
	}
	if err := l.readCluster(); err != nil {
		return err
	}
	if err := l.dir.RemountNamespaces(); err != nil {
		return err
	}
	if err := l.parts.start(ctx, d, l.broken); err != nil {
		return err
	}
	l.resume(ctx, d)
	l.isReady.Store(true)
	close(l.ready)
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

var errNotReady = errors.New("the lab is not ready yet")

// status is what `packetwalk status` prints.
func (l *lab) status() status.Status {
	s := status.New(l.dir.Name(), os.Getpid())
	s.Ready, s.Kubeconfig = l.isReady.Load(), l.dir.Kubeconfig()
	l.parts.report(&s)
	s.Problems = append(append(s.DerivedProblems(), s.Problems...), l.problems()...)
	s.Warnings = append(s.DerivedWarnings(), s.Warnings...)
	for _, ns := range l.unmounted() {
		s.Problems = append(s.Problems, fmt.Sprintf("%s: its network namespace is no longer mounted at %s; 'packetwalk up --name %s' mounts it again",
			hostOf(ns), ns.Path(), s.Name))
	}
	if l.busy.Load() {
		s.Warnings = append(s.Warnings, "the cluster is being changed: not everything is as asked yet")
	}
	return s
}
