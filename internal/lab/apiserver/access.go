// Package apiserver has the control plane as components of a lab: its processes, the ways to and from it, and clients of it.
package apiserver

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
)

// Access is what leads to and from the control plane before there is one: its keys and files, its namespace, the forwarder on 127.0.0.1,
// and the API server's way to nodes and pods.
type Access struct {
	*lifecycle.Env
	Azure  *network.Network
	Dialer func(netip.AddrPort) DialFunc // chooses where a connection to a node, pod or service is opened

	Config    controlplane.Config
	CA        *controlplane.Authority
	Namespace *netns.Namespace
	server    atomic.Pointer[string] // the API server's address on this machine
}

// manyNodes is from how many nodes on pods that become ready within a second make one change of a Service's endpoints: each change is sent to
// each node, with all endpoints of the Service. Below it, the lab lifts this throttle of upstream's.
const manyNodes = 50

// Start makes the certificates and the API server's namespace.
func (a *Access) Start(ctx context.Context) error {
	c := a.Cluster()
	a.Config = controlplane.Config{
		LogDir: a.Dir.Logs(), DataDir: a.Dir.EtcdData(),
		Dir: string(a.Dir), Binary: a.Binaries.ControlPlane, ClusterName: c.Metadata.Name, Address: vnet.APIServerAddress,
		ServiceCIDR: c.Spec.Network.ServiceCIDR, EgressSocket: a.Dir.EgressSocket(),
	}
	if !c.Spec.Network.IsOverlay() { // there, Azure gives nodes their parts
		a.Config.PodCIDR = c.Spec.Network.PodCIDR
	}
	if len(c.Nodes()) >= manyNodes {
		a.Config.EndpointsBatch = time.Second
	}
	var err error
	if a.CA, err = controlplane.Prepare(a.Config, time.Now()); err != nil {
		return err
	}
	if a.Namespace, err = a.Azure.MakeHost(plan.ControlPlaneHost); err != nil {
		return err
	}
	err = a.Serve(ctx, "the API server's way to nodes and pods", func(ctx context.Context) (net.Listener, error) {
		return lifecycle.ListenUnix(ctx, a.Dir.EgressSocket())
	}, func(ctx context.Context, l net.Listener) error { return serveEgress(ctx, l, a.Dialer) })
	if err != nil {
		return err
	}
	server := netip.AddrPortFrom(a.Config.Address, controlplane.Port).String()
	return a.Serve(ctx, "the way to the API server", a.listen, func(ctx context.Context, l net.Listener) error {
		return forward(ctx, l, a.Namespace.Dial, server)
	})
}

// listen listens for users of the API server, and writes their kubeconfig.
func (a *Access) listen(context.Context) (net.Listener, error) {
	if err := netns.LoopbackUp(); err != nil {
		return nil, err
	}
	l, err := listenForwarder(a.Dir)
	if err != nil {
		return nil, err
	}
	server := "https://" + l.Addr().String()
	a.server.Store(&server)
	text, err := a.CA.Kubeconfig(a.Dir.Name(), server, controlplane.Admin, time.Now())
	if err == nil {
		err = atomicfile.Write(a.Dir.Kubeconfig(), text, 0o600)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Report adds the API server's state.
func (a *Access) Report(s *status.Status) { s.APIServer = *a.server.Load() }

func (a *Access) clientAs(user controlplane.User) (*kubernetes.Clientset, error) {
	kubeconfig, err := a.CA.Kubeconfig(a.Dir.Name(), a.Config.Server(), user, time.Now())
	if err != nil {
		return nil, err
	}
	return clientFor(kubeconfig, a.Namespace.Dial)
}

// Namespaces returns that of the API server.
func (a *Access) Namespaces() []*netns.Namespace { return []*netns.Namespace{a.Namespace} }
