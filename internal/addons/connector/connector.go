package connector

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/pods/nodeapi"
)

// config is all that a connector needs. Fields without "optional" must be set.
type config struct {
	NodeName string
	Version  string     // that the node shows
	Address  netip.Addr // the connector's pod's: the node's internal address
	Port     int        // where the connector answers the API server
	Client   kubernetes.Interface
	ACI      aci.Service

	Location      string
	SubnetID      string         // that groups get their addresses of
	KubeDNS       netip.Addr     // the cluster's DNS Service
	ClusterDomain string         //
	Extension     *aci.Extension // kube-proxy's, for each group; optional

	Certificate tls.Certificate // of the server that the API server asks
	ClientCA    *x509.CertPool  // that has signed the API server's client certificate
	Log         *slog.Logger
}

// connector is a virtual node. Make it with newConnector, then Run it.
type connector struct {
	cfg      config
	node     *corev1.Node
	recorder record.EventRecorder
	all      informers.SharedInformerFactory // of the cluster's objects
	own      informers.SharedInformerFactory // of the node's pods
	pods     coreinformers.PodInformer

	ctx   context.Context // of Run
	mu    sync.Mutex
	known map[string]*follower // by the pod's namespace/name
	wait  sync.WaitGroup
}

// newConnector makes a connector that does nothing yet.
func newConnector(cfg config) *connector {
	c := &connector{cfg: cfg, known: map[string]*follower{}}
	c.node = nodeObject(cfg, metav1.Now())
	c.all = informers.NewSharedInformerFactory(cfg.Client, 0)
	c.own = informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", cfg.NodeName).String()
	}))
	c.pods = c.own.Core().V1().Pods()
	return c
}

// podWorkers is the number of pods that are looked at at once.
const podWorkers = 10

// Run registers the node, finds the groups of an earlier connector, and serves until ctx ends. Groups run on then.
func (c *connector) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer c.wait.Wait()
	defer cancel()
	c.ctx = ctx
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.cfg.Client.CoreV1().Events("")})
	c.recorder = broadcaster.NewRecorder(scheme.Scheme,
		corev1.EventSource{Component: c.cfg.NodeName + "/pod-controller", Host: c.cfg.NodeName})

	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(c.cfg.Port)))
	if err != nil {
		return err
	}
	nodes, pods, err := c.controllers()
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	start := func(what string, f func() error) {
		c.wait.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("%s: %w", what, err)
			}
		})
	}
	start("server", func() error { return nodeapi.Serve(ctx, listener, c.api()) })
	c.all.Start(ctx.Done())
	c.own.Start(ctx.Done())
	defer c.own.Shutdown()
	defer c.all.Shutdown()
	if err := synced(ctx, c.all, c.own); err != nil {
		return err
	}
	if err := c.restore(ctx); err != nil {
		return err
	}
	start("pods", func() error { return pods.Run(ctx, podWorkers) })
	start("node", func() error { return c.register(ctx, nodes) })
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// synced waits until the caches have what there is.
func synced(ctx context.Context, factories ...informers.SharedInformerFactory) error {
	for _, f := range factories {
		for kind, ok := range f.WaitForCacheSync(ctx.Done()) {
			if !ok {
				return fmt.Errorf("read %v: %w", kind, context.Cause(ctx))
			}
		}
	}
	return nil
}

// register creates the Node and renews its lease. An existing Node keeps its labels and taints, which another client may have changed. The
// library's controller replaces its status with the connector's.
func (c *connector) register(ctx context.Context, nodes *vknode.NodeController) error {
	there, err := c.makeNode(ctx)
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	if there {
		c.cfg.Log.Info("the node is registered already", "node", c.node.Name)
	}
	return nodes.Run(ctx)
}

// heartbeat answers the library's node controller: the node is well as long as the connector runs.
type heartbeat struct{}

func (heartbeat) Ping(ctx context.Context) error { return ctx.Err() }

func (heartbeat) NotifyNodeStatus(context.Context, func(*corev1.Node)) {}

var errNoPod = errors.New("no such pod on this node")
