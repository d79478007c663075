package simulated

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/pods/nodeapi"
)

// Config is a node's. All paths are absolute.
type Config struct {
	// Node is the object to register: its name, labels, taints and provider ID, and in the status its capacity and an InternalIP.
	Node       *corev1.Node `json:"node"`
	Kubeconfig string       `json:"kubeconfig"` // of system:node:NAME
	// Certificate and Key are files with what the node serves with, ClientCA one with the authority of its clients.
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
	ClientCA    string `json:"clientCA"`
	// Namespaces is the directory of the pods' network namespaces: NAMESPACE_NAME.
	Namespaces string `json:"namespaces"`
	// Networks is the directory of CNI configurations, Plugins that of the plugins, Cache that of what was attached.
	Networks string `json:"networks"`
	Plugins  string `json:"plugins"`
	Cache    string `json:"cache"`
}

// maxConfig is the most that is read of a configuration, in bytes.
const maxConfig = 1 << 20

// ReadConfig reads a configuration from a JSON file.
func ReadConfig(path string) (c Config, err error) {
	text, err := limitio.ReadFile(path, maxConfig)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("read %s: %w", path, err)
	}
	if c.Node == nil || c.Node.Name == "" || !address(c.Node).IsValid() {
		return c, fmt.Errorf("read %s: node has no name, or no InternalIP", path)
	}
	return c, nil
}

// Run registers the node and runs its pods until ctx ends. Pods of an earlier run that the API still has are taken over, others removed;
// when ctx ends their namespaces stay.
func Run(ctx context.Context, c Config, log *slog.Logger) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	broadcast := record.NewBroadcaster()
	broadcast.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	defer broadcast.Shutdown()
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(lean),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", c.Node.Name).String()
		}))
	n := newNode(c, client, factory.Core().V1().Pods(), log)
	if n.space, err = ownNamespace(); err != nil {
		return err
	}
	defer n.space.Close()
	n.recorder = broadcast.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: c.Node.Name})
	g, ctx := errgroup.WithContext(ctx)
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	g.Go(func() error { return n.register(ctx) })
	g.Go(func() error { return n.serve(ctx) })
	g.Go(func() error { return n.run(ctx) })
	err = g.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// client returns the API server's, as the node.
func (c *Config) client() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	config.QPS, config.Burst = 50, 100 // a kubelet's (kubelet.config.k8s.io/v1beta1, kubeAPIQPS)
	return kubernetes.NewForConfig(config)
}

// lean leaves the managed fields out, which are half of a pod.
func lean(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// serve answers the API server at port 10250 until ctx ends.
func (n *node) serve(ctx context.Context) error {
	pair, err := tls.LoadX509KeyPair(n.Certificate, n.Key)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(n.ClientCA)
	if err != nil {
		return err
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(ca)
	l, err := n.space.Listen(ctx, "tcp", fmt.Sprintf(":%d", kubeletPort))
	if err != nil {
		return err
	}
	return nodeapi.Serve(ctx, l, nodeapi.Config{Certificate: pair, ClientCA: clients, ClientName: nodeapi.APIServerName, Now: time.Now,
		Refusal: refusal, Pods: n.list, Stats: n.stats})
}

// ownNamespace returns the node's network namespace: the one that the process is in.
func ownNamespace() (*netns.Namespace, error) { return netns.Open("/proc/self/ns/net") }
