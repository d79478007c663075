package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
)

// access is what leads to and from the control plane before there is one: its keys and files, its namespace, the forwarder on 127.0.0.1,
// and the API server's way to nodes and pods.
type access struct {
	*lifecycle.Env
	azure *azure
	nodes *nodes

	plane  controlplane.Config
	ca     *controlplane.Authority
	ns     *netns.Namespace
	server atomic.Pointer[string] // the API server's address on this machine
}

// manyNodes on one machine are told of each change of a Service's endpoints, with a hundred endpoints that did not change, at a price: pods
// that become ready within a second make one change. Upstream's own throttle, which the lab lifts, does so in clusters.
const manyNodes = 50

func (a *access) Start(ctx context.Context) error {
	c := a.Cluster()
	a.plane = controlplane.Config{
		LogDir: a.Dir.Logs(),
		Dir:    string(a.Dir), Binary: a.Binaries.ControlPlane, ClusterName: c.Metadata.Name, Address: vnet.APIServerAddress,
		ServiceCIDR: c.Spec.Network.ServiceCIDR, PodCIDR: c.Spec.Network.PodCIDR, EgressSocket: a.Dir.EgressSocket(),
	}
	if len(c.Nodes()) >= manyNodes {
		a.plane.EndpointsBatch = time.Second
	}
	var err error
	if a.ca, err = controlplane.Prepare(a.plane, time.Now()); err != nil {
		return err
	}
	if a.ns, err = a.azure.attachHost(plan.ControlPlaneHost); err != nil {
		return err
	}
	err = a.Serve(ctx, "the API server's way to nodes and pods", func(ctx context.Context) (net.Listener, error) {
		return lifecycle.ListenUnix(ctx, a.Dir.EgressSocket())
	}, func(ctx context.Context, l net.Listener) error { return serveEgress(ctx, l, a.nodes.dialer) })
	if err != nil {
		return err
	}
	server := netip.AddrPortFrom(a.plane.Address, controlplane.Port).String()
	return a.Serve(ctx, "the way to the API server", a.listen, func(ctx context.Context, l net.Listener) error {
		return forward(ctx, l, a.ns.Dial, server)
	})
}

// listen listens for users of the API server, and writes their kubeconfig.
func (a *access) listen(context.Context) (net.Listener, error) {
	if err := netns.LoopbackUp(); err != nil {
		return nil, err
	}
	l, err := listenForwarder(a.Dir)
	if err != nil {
		return nil, err
	}
	server := "https://" + l.Addr().String()
	a.server.Store(&server)
	text, err := a.ca.Kubeconfig(a.Dir.Name(), server, controlplane.Admin, time.Now())
	if err == nil {
		err = atomicfile.Write(a.Dir.Kubeconfig(), text, 0o600)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (a *access) Report(s *status.Status) { s.APIServer = *a.server.Load() }

func (a *access) clientAs(user controlplane.User) (*kubernetes.Clientset, error) {
	kubeconfig, err := a.ca.Kubeconfig(a.Dir.Name(), a.plane.Server(), user, time.Now())
	if err != nil {
		return nil, err
	}
	return clientFor(kubeconfig, a.ns.Dial)
}

// processes are upstream's processes that a part keeps running.
type processes struct {
	*lifecycle.Env
	access *access
	all    []*supervise.Supervisor
}

func (p *processes) launch(ctx context.Context, all, some []controlplane.Component) error {
	return p.access.ca.Launch(ctx, all, some, p.access.ns.Dial, func(c controlplane.Component) error {
		s, err := p.Run(p.access.ns, c.Process)
		if err == nil {
			p.all = append(p.all, s)
		}
		return err
	})
}

func (p *processes) Report(s *status.Status) {
	for _, one := range p.all {
		s.Components = append(s.Components, one.State())
	}
}

func (p *processes) Stop() {
	for _, one := range p.all {
		one.Detach()
	}
}

// serving is how many of the control plane's components, the first ones, are what serves requests: etcd and the API server.
const serving = 2

// api is the API server, from the moment on that it serves requests, which is a second before it calls itself ready; and the client of it
// that the lab's own parts use.
type api struct {
	processes
	client kubernetes.Interface
}

// rest is for what is sent as text.
func (a *api) rest() rest.Interface { return a.client.CoreV1().RESTClient() }

func (a *api) Start(ctx context.Context) error {
	all := a.access.plane.Components()
	if err := a.launch(ctx, all, all[:serving]); err != nil {
		return err
	}
	if err := a.access.ca.WaitServing(ctx, all[serving-1], a.access.ns.Dial); err != nil {
		return err
	}
	a.Done("API server answers")
	client, err := a.access.clientAs(controlplane.Admin)
	if err != nil {
		return err
	}
	a.client = client
	return manifests.Retry(ctx, func() error { return controlplane.ApplyBootstrap(ctx, client.RbacV1()) })
}

// waitDefaultAccount waits until pods can be made in namespace default: the service account admission refuses them before the
// controller manager has made the account.
func (a *api) waitDefaultAccount(ctx context.Context) error {
	if err := manifests.Served(ctx, a.rest(), "/api/v1/namespaces/default/serviceaccounts/default"); err != nil {
		return fmt.Errorf("wait for the service account default/default: %w", err)
	}
	return nil
}

// plane is the rest of the control plane. It is up when all of it is ready.
type plane struct{ processes }

func (p *plane) Start(ctx context.Context) error {
	all := p.access.plane.Components()
	if err := p.launch(ctx, all, all[serving:]); err != nil {
		return err
	}
	if err := p.access.ca.WaitReady(ctx, p.access.ns.Dial, all...); err != nil {
		return err
	}
	p.Done("control plane ready")
	return nil
}
