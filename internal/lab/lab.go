package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/hosts"
	"packetwalk.dev/internal/lab/imageservice"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/nodes"
	"packetwalk.dev/internal/lab/preflight"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/lab/virtualnode"
	"packetwalk.dev/internal/pods/source"
)

// A lab is a cluster that this process keeps up: a graph of components.
type lab struct {
	*lifecycle.Env
	graph  *lifecycle.Graph
	azure  *network.Network
	nodes  *nodes.Nodes
	groups *virtualnode.Groups
	cut    lifecycle.PendingChange

	ready    chan struct{} // closes when the cluster is ready
	isReady  atomic.Bool
	changing sync.Mutex  // of changes of cluster and nodes
	busy     atomic.Bool // a change is being made
}

// newLab makes a lab's components. The control plane takes by far the longest to start. Everything that does not need it is made meanwhile.
func newLab(d layout.Dir, bin layout.Binaries, say func(lifecycle.Step)) (*lab, error) {
	c := lifecycle.NewEnv(d, bin, slog.New(slog.NewTextHandler(os.Stderr, nil)), say)
	images := &imageservice.Service{Env: c}
	c.BuiltIn = &source.BuiltIn{
		Program: bin.App, Base: bin.Base, Roots: source.RootsDir, Open: images.Open, Brought: map[string]string{
			"coredns": bin.ControlPlane, "nginx-ingress-controller": bin.Addon, "external-dns": bin.Addon, "virtual-kubelet": bin.Addon,
			"dns": bin.DNS, "metrics-server": bin.MetricsServer(),
		},
	}
	l := &lab{Env: c, ready: make(chan struct{})}
	l.azure = &network.Network{Env: c, Pending: &l.cut}
	l.nodes = &nodes.Nodes{Env: c, Azure: l.azure, Library: images}
	access := &apiserver.Access{Env: c, Azure: l.azure, Dialer: l.nodes.Dialer}
	api := &apiserver.Server{Processes: apiserver.Processes{Env: c, Access: access}}
	routes := &podRoutes{Env: c, azure: l.azure, api: api}
	l.nodes.Access, l.nodes.API, l.nodes.Routes = access, api, routes
	l.groups = &virtualnode.Groups{Env: c, Azure: l.azure, Access: access, Library: images, Shared: &l.nodes.Shared}

	var units []*lifecycle.Unit
	add := func(name string, c lifecycle.Component, after ...*lifecycle.Unit) *lifecycle.Unit {
		u := &lifecycle.Unit{Name: name, Component: c, After: after}
		units = append(units, u)
		return u
	}
	add("the control socket", lifecycle.StartFunc(l.startControl))
	azureNetwork := add("Azure's network", l.azure)
	optional := &optionalFeatures{Env: c, check: preflight.Check}
	features := add("optional kernel features", optional)
	limits := add("bounds of containers", &bounds{Env: c}, features)
	add("VMs and internet hosts", &hosts.Hosts{Env: c, Azure: l.azure, Pending: &l.cut}, azureNetwork, limits)
	add("the name servers", &hosts.Resolvers{Env: c, Azure: l.azure}, azureNetwork, limits)
	files := add("the control plane's files", access, azureNetwork)
	store := add("images", images)
	add("the first images of labs to come", lifecycle.StartFunc(func(ctx context.Context) error {
		go func() {
			select {
			case <-ctx.Done():
			case <-l.ready:
				images.BuildFirst(ctx)
			}
		}()
		return nil
	}))
	machines := add("the nodes' machines", nodes.Machines{Nodes: l.nodes}, files, limits)
	instances := add("container instances", l.groups, files, store, limits)
	server := add("the API server", api, files)
	controlPlane := add("the control plane", &apiserver.ControlPlane{Processes: apiserver.Processes{Env: c, Access: access}}, server)
	controllers := add("the cloud controllers", &apiserver.CloudControllers{Processes: apiserver.Processes{Env: c, Access: access}},
		controlPlane, instances)
	add("the watch of the cloud controllers' failures", &cloudFailures{Env: c, api: api, routes: routes}, server)
	resources := add("Calico's resources", &calico{Env: c, api: api}, server)
	configs := add("the nodes' network configurations", &nodeNetworkConfigs{Env: c, api: api}, server)
	masquerade := add("the ip-masq-agent's configuration", &masq{Env: c, api: api, nodes: l.nodes}, controlPlane)
	add("the service account of pods", lifecycle.StartFunc(api.WaitDefaultAccount), server)
	add("the users of pods", &podUsers{Env: c, api: api, features: optional}, server, features)
	agents := add("the nodes' agents", nodes.Agents{Nodes: l.nodes}, machines, resources, masquerade)
	allNodes := add("the nodes", l.nodes, machines, server, store, configs)
	add("the network policy engine", nodes.NewPolicyEngine(l.nodes), agents, allNodes)
	add("the routes to nodes' pods", routes, controllers, allNodes)
	add("the virtual node", &virtualnode.Connector{Env: c, Access: access, API: api}, instances, agents, allNodes)
	add("the cluster's DNS and addons", &addons{Env: c, api: api, ready: l.ready}, server)
	add("the watch of what has no effect", &policies{Env: c, api: api}, server)
	add("the provisioner of volumes", &storage{Env: c, api: api, nodes: l.nodes, ready: l.ready}, server)
	var err error
	l.graph, err = lifecycle.NewGraph(units...)
	return l, err
}

// Run runs the lab process: it brings the lab of the directory up, or takes it over from a process that died, reports its steps on progress
// and keeps it up until ctx ends. A lab that is not up within the timeout is an error. When ctx ends this process ends, and nothing else
// does: Destroy removes a lab.
func Run(ctx context.Context, d layout.Dir, bin layout.Binaries, timeout time.Duration, progress *os.File) error {
	unix.Umask(0o022) // whatever the caller's is: users of all kinds in pods read what is made for them
	begin := time.Now()
	l, err := newLab(d, bin, lifecycle.NewReporter(progress, begin))
	if err != nil {
		return err
	}
	go supervise.BoundLog(ctx, d.Log("lab"))
	if err := l.up(ctx, lifecycle.NewDeadline(timeout)); err != nil {
		l.Progress(lifecycle.Step{Error: err.Error()})
		return err
	}
	l.Progress(lifecycle.Step{Ready: true})
	progress.Close()
	l.Log.Info("the cluster is ready", "seconds", time.Since(begin).Seconds())
	<-ctx.Done()
	l.graph.Stop()
	return nil
}

func (l *lab) up(ctx context.Context, d lifecycle.Deadline) error {
	if err := l.Dir.Claim(); err != nil {
		return err
	}
	if err := l.readCluster(); err != nil {
		return err
	}
	if err := l.Dir.RemountNamespaces(); err != nil {
		return err
	}
	if err := l.graph.Start(ctx, d, l.Broken()); err != nil {
		return err
	}
	l.resume(ctx, d)
	l.isReady.Store(true)
	close(l.ready)
	return nil
}

var errNotReady = errors.New("the lab is not ready yet")

// status returns what `packetwalk status` prints.
func (l *lab) status() status.Status {
	s := status.New(l.Dir.Name(), os.Getpid())
	s.Ready, s.Kubeconfig = l.isReady.Load(), l.Dir.Kubeconfig()
	l.graph.Report(&s)
	s.Problems = append(append(s.DerivedProblems(), s.Problems...), l.FaultLines()...)
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
