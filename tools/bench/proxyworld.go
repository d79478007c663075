package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/node/kube"
)

// Addresses of the service proxies' world. The API server's namespace holds all of the endpoints' range, so that each endpoint answers.
var (
	proxyAPI       = netip.MustParseAddr("192.0.2.1")
	proxyServices  = netip.MustParsePrefix("10.96.0.0/12")
	proxyEndpoints = netip.MustParsePrefix("10.128.0.0/9")
	proxyChanged   = netip.MustParseAddr("10.200.0.0") // from here on: endpoints that come by changes, each once
)

const (
	proxyNode     = "bench-node"
	proxyPort     = 8080
	proxyWorkers  = 48 // requests to the API server at once
	endpointsEach = 3
)

// proxyWorld is an API server, with etcd, in a namespace of its own, the objects that it has, and a node's namespace, which is made anew
// for each service proxy.
type proxyWorld struct {
	dir     string
	config  controlplane.Config
	api     *netns.Namespace
	node    *netns.Namespace
	running []*supervise.Supervisor
	client  *kubernetes.Clientset
	server  net.Listener

	services int
	changed  atomic.Uint32 // addresses that changes have used
}

// newProxyWorld starts the API server. The world is to be closed also after an error.
func newProxyWorld(ctx context.Context) (w *proxyWorld, err error) {
	w = &proxyWorld{}
	if w.dir, err = os.MkdirTemp("", "bench-proxy"); err != nil {
		return w, err
	}
	if w.api, err = netns.Create(filepath.Join(w.dir, "api")); err != nil {
		return w, err
	}
	for _, args := range [][]string{
		{"address", "add", proxyAPI.String() + "/32", "dev", "lo"},
		{"route", "add", "local", proxyEndpoints.String(), "dev", "lo"},
	} {
		if err := ip(ctx, w.api, args...); err != nil {
			return w, err
		}
	}
	if w.server, err = w.api.Listen(ctx, "tcp", fmt.Sprintf("0.0.0.0:%d", proxyPort)); err != nil {
		return w, err
	}
	go answer(w.server)
	if err := w.startAPI(ctx); err != nil {
		return w, err
	}
	_, err = w.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: proxyNode},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.6"}}}},
		metav1.CreateOptions{})
	return w, err
}

func ip(ctx context.Context, in *netns.Namespace, args ...string) error {
	_, err := program.Command{Path: "ip", Args: args, In: in.Do}.Output(ctx)
	return err
}

// answer accepts connections and ends them, until the listener is closed.
func answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c.Close()
	}
}

func (w *proxyWorld) startAPI(ctx context.Context) error {
	binary, err := filepath.Abs(filepath.Join(bin, "packetwalk-controlplane"))
	if err != nil {
		return err
	}
	w.config = controlplane.Config{Dir: filepath.Join(w.dir, "cp"), Binary: binary, ClusterName: "bench", Address: proxyAPI,
		ServiceCIDR: proxyServices}
	authority, err := controlplane.Prepare(w.config, time.Now())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	server := w.config.Components()[:2] // etcd and the API server
	err = authority.Launch(ctx, server, server, w.api.Dial, func(c controlplane.Component) error {
		s, err := supervise.Run(c.Process, w.api.Start, supervise.Options{})
		if err == nil {
			w.running = append(w.running, s)
		}
		return err
	})
	if err == nil {
		err = authority.WaitReady(ctx, w.api.Dial, server...)
	}
	if err != nil {
		return err
	}
	config, err := kube.Config("", w.config.KubeconfigPath(controlplane.Admin), "bench")
	if err != nil {
		return err
	}
	config.QPS, config.Dial, config.ContentType = -1, w.api.Dial, "application/vnd.kubernetes.protobuf"
	config.Timeout = 30 * time.Second
	w.client, err = kubernetes.NewForConfig(config)
	return err
}

// close ends all that runs, clients before servers, and removes what was made.
func (w *proxyWorld) close() {
	w.removeNode()
	for i := len(w.running) - 1; i >= 0; i-- {
		if err := w.running[i].Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}
	if w.server != nil {
		_ = w.server.Close()
	}
	if w.api != nil {
		if err := w.api.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}
	_ = os.RemoveAll(w.dir)
}

// makeNode makes the node's namespace, with a way to the API server and, through it, to everything.
func (w *proxyWorld) makeNode(ctx context.Context) (err error) {
	if w.node, err = netns.Create(filepath.Join(w.dir, "node")); err != nil {
		return err
	}
	err = netns.EnsureVeth(netns.LinkEnd{Namespace: w.node, Name: "eth0", MAC: "00:0d:3a:00:00:06"},
		netns.LinkEnd{Namespace: w.api, Name: "node", MAC: "00:0d:3a:00:00:05"}, 1500)
	if err != nil {
		return err
	}
	if err := ip(ctx, w.api, "address", "add", "192.0.2.5/30", "dev", "node"); err != nil {
		return err
	}
	if err := ip(ctx, w.node, "address", "add", "192.0.2.6/30", "dev", "eth0"); err != nil {
		return err
	}
	return ip(ctx, w.node, "route", "add", "default", "via", "192.0.2.5")
}

func (w *proxyWorld) removeNode() {
	if w.node == nil {
		return
	}
	if err := w.node.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	w.node = nil
}

// after returns the address so many after another.
func after(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// clusterIP returns a service's address; the first of the range is the Service kubernetes'.
func clusterIP(service int) netip.Addr { return after(proxyServices.Addr(), service+256) }

// endpoint returns one of the endpoints that a service has from the start.
func endpoint(service, i int) netip.Addr {
	return after(proxyEndpoints.Addr(), service*endpointsEach+i+256)
}

func endpointsOf(service int) (all []netip.Addr) {
	for i := range endpointsEach {
		all = append(all, endpoint(service, i))
	}
	return all
}

func serviceName(i int) string { return fmt.Sprintf("s%06d", i) }

// fill makes services until there are so many, each by two requests: the Service, with its address, and its EndpointSlice.
func (w *proxyWorld) fill(ctx context.Context, services int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(proxyWorkers)
	for i := w.services; i < services; i++ {
		g.Go(func() error { return w.create(ctx, i) })
	}
	w.services = max(w.services, services)
	return g.Wait()
}

func (w *proxyWorld) create(ctx context.Context, i int) error {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: serviceName(i)}, Spec: corev1.ServiceSpec{
		ClusterIP: clusterIP(i).String(),
		Ports:     []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(proxyPort), Protocol: corev1.ProtocolTCP}}}}
	_, err := w.client.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, s, metav1.CreateOptions{})
	if err == nil {
		_, err = w.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Create(ctx, sliceOf(i, endpointsOf(i)), metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func sliceOf(service int, endpoints []netip.Addr) *discoveryv1.EndpointSlice {
	yes, port, protocol, name := true, int32(proxyPort), corev1.ProtocolTCP, ""
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(service), Labels: map[string]string{
			discoveryv1.LabelServiceName: serviceName(service)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for _, a := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes}})
	}
	return s
}

// newAddress returns an endpoint's address that no service has had.
func (w *proxyWorld) newAddress() netip.Addr {
	return after(proxyChanged, int(w.changed.Add(1)))
}

// update gives a service other endpoints.
func (w *proxyWorld) update(ctx context.Context, service int, endpoints []netip.Addr) error {
	_, err := w.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Update(ctx, sliceOf(service, endpoints), metav1.UpdateOptions{})
	return err
}
