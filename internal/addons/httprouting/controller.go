package httprouting

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"packetwalk.dev/internal/addons/ingress"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/node/kube"
)

// ControllerOptions are the ingress controller's settings, by the names of ingress-nginx's flags.
type ControllerOptions struct {
	Table          ingress.Config       // --ingress-class, --controller-class, --default-backend-service
	PublishService types.NamespacedName // whose front end Ingresses get as their address
	HTTP, HTTPS    string               // addresses to listen on
	Health         string               // address of /healthz and /explain
	Config         *rest.Config
	AccessLog      io.Writer
	Log            *log.Logger
}

// RunController serves until ctx ends; then it lets the requests that are there end, for at most drain.
func RunController(ctx context.Context, o ControllerOptions) error {
	c, err := newController(o)
	if err != nil {
		return err
	}
	health, err := net.Listen("tcp", o.Health)
	if err != nil {
		return err
	}
	go func() { _ = serve.New(c.healthHandler(), nil).WithoutKeepAlive().Serve(ctx, health) }()
	go c.watches.Run(ctx)
	if !c.watches.WaitForSync(ctx) {
		return nil // asked to end before it began
	}
	c.build()
	go c.rebuildOnChange(ctx)
	go c.publish(ctx)
	return c.serve(ctx)
}

// What the controller's end takes at most; a pod has 30 s (terminationGracePeriodSeconds).
const (
	drain     = 10 * time.Second // for requests
	lastLines = 5 * time.Second  // for what the access log has of them
)

type controller struct {
	options ControllerOptions
	clients clients
	watches *kube.Watches
	stores  struct{ classes, ingresses, services, slices, secrets cache.Store }
	table   atomic.Pointer[ingress.Table]
	proxy   *proxy
	events  *events
	// rebuilt receives after the table was made anew.
	rebuilt chan struct{}
}

func newController(o ControllerOptions) (*controller, error) {
	cl, err := newClients(o.Config)
	if err != nil {
		return nil, err
	}
	c := &controller{options: o, clients: cl, watches: kube.NewWatches(nil), rebuilt: make(chan struct{}, 1)}
	c.stores.classes = watch(c.watches, cl.networking, "ingressclasses", &networkingv1.IngressClass{}, "")
	c.stores.ingresses = watch(c.watches, cl.networking, "ingresses", &networkingv1.Ingress{}, "")
	c.stores.services = watch(c.watches, cl.core, "services", &corev1.Service{}, "")
	c.stores.slices = watch(c.watches, cl.discovery, "endpointslices", &discoveryv1.EndpointSlice{}, "")
	c.stores.secrets = watch(c.watches, cl.core, "secrets", &corev1.Secret{}, "type="+string(corev1.SecretTypeTLS))
	own, err := ownCertificate(time.Now())
	if err != nil {
		return nil, err
	}
	c.proxy = newProxy(&c.table, own, o.AccessLog, o.Log)
	c.events = &events{client: cl.core, log: o.Log, told: map[string]bool{}}
	return c, nil
}

// rebuildOnChange rebuilds the table after changes.
func (c *controller) rebuildOnChange(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.watches.Changed():
		}
		// What one change begins, such as a Deployment's roll-out, comes in many: a moment takes most of them together.
		if !pause.For(ctx, 10*time.Millisecond) {
			return
		}
		c.build()
	}
}

func (c *controller) build() {
	c.table.Store(ingress.Build(c.options.Table, ingress.Objects{
		Classes:   kube.Objects[*networkingv1.IngressClass](c.stores.classes),
		Ingresses: kube.Objects[*networkingv1.Ingress](c.stores.ingresses),
		Services:  kube.Objects[*corev1.Service](c.stores.services),
		Slices:    kube.Objects[*discoveryv1.EndpointSlice](c.stores.slices),
		Secrets:   kube.Objects[*corev1.Secret](c.stores.secrets),
	}))
	select {
	case c.rebuilt <- struct{}{}:
	default:
	}
}

// serve answers requests on both ports.
func (c *controller) serve(ctx context.Context) error {
	plain, err := net.Listen("tcp", c.options.HTTP)
	if err != nil {
		return err
	}
	secure, err := net.Listen("tcp", c.options.HTTPS)
	if err != nil {
		return err
	}
	c.options.Log.Printf("serving %d Ingresses on %s and %s", len(c.table.Load().Ingresses), plain.Addr(), secure.Addr())
	logger := log.New(filteredLog{c.options.Log}, "", 0)
	servers := [...]*serve.Server{serve.New(c.proxy, logger), serve.New(c.proxy, logger).WithTLS(c.proxy.tlsConfig())}
	ended := make(chan error, 2)
	for i, l := range [...]net.Listener{plain, secure} {
		go func() { ended <- servers[i].Serve(context.WithoutCancel(ctx), l) }()
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	defer c.proxy.log.wait(lastLines)
	last, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	var both errgroup.Group
	for _, s := range servers {
		both.Go(func() error { return s.Shutdown(last) })
	}
	if err := both.Wait(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// healthHandler answers /healthz when there is a table, and /explain?url=URL with where a request for it goes and why.
func (c *controller) healthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if c.table.Load() == nil {
			http.Error(w, "the API has not been read yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "ok")
	})
	mux.HandleFunc("/explain", c.explain)
	return mux
}
