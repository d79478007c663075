package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/nodeapi"
	"packetwalk.dev/internal/pods/source"
)

// A Namespace is a network namespace; *kernel.Namespace is one.
type Namespace interface {
	Path() string
	// Do runs f on a thread inside the namespace.
	Do(f func() error) error
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
	Listen(ctx context.Context, network, addr string) (net.Listener, error)
	Close() error
}

// A Runtime runs containers. FromRuntime makes one of *container.Runtime.
type Runtime interface {
	Start(ctx context.Context, s container.Spec) (Container, error)
	Adopt(dir string) (Container, error)
}

// A Container is one that a Runtime started; *container.Container is one.
type Container interface {
	Spec() container.Spec
	StartedAt() time.Time
	Done() <-chan struct{}
	Exit() container.Exit
	Stop(ctx context.Context, grace time.Duration) error
	Limit(l cgroup.Limits) error
	Exec(ctx context.Context, e container.Exec) (code int, err error)
	Attach(ctx context.Context, s container.Streams) error
	Remove() error
}

type realRuntime struct{ r *container.Runtime }

// FromRuntime makes the container package's runtime a Runtime.
func FromRuntime(r *container.Runtime) Runtime { return realRuntime{r} }

func (r realRuntime) Start(ctx context.Context, s container.Spec) (Container, error) {
	c, err := r.r.Start(ctx, s)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (r realRuntime) Adopt(dir string) (Container, error) {
	c, err := r.r.Adopt(dir)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// A Config is all that a kubelet needs. Fields without "optional" must be set.
type Config struct {
	// Node is the Node object to register: name, labels, annotations, taints, provider ID, pod CIDR (optional), and in the status the
	// addresses (InternalIP must be among them), capacity and node info; what of the status is missing gets a value that fits the machine.
	Node *corev1.Node
	// Client should have no rate limit and speak protobuf; it may be shared by all kubelets.
	Client kubernetes.Interface
	Shared *Shared // one for all kubelets of a cluster; running
	// Runtime starts containers, Resolve finds what an image's reference means, Sandbox that of what holds processes together: it buries those
	// that nobody waits for.
	Runtime Runtime
	Resolve func(ctx context.Context, r source.Request) (source.Image, error)
	Sandbox func(context.Context) (source.Image, error)
	// Images are those that there are, as the node's status has them; optional. It is asked every ten seconds.
	Images func() []corev1.ContainerImage
	// Unbounded says which limits of containers Runtime does not enforce, and why; empty in good times.
	Unbounded []string

	NodeNS Namespace // the node's network namespace
	// PodNetNSDir is the directory of the pods' network namespaces, one file each, <namespace>_<pod>.
	PodNetNSDir string
	// NewNetNS, OpenNetNS and RemoveNetNS make, open and remove a namespace mounted at a path; optional: the kernel package's.
	NewNetNS, OpenNetNS func(path string) (Namespace, error)
	RemoveNetNS         func(path string) error
	// MountMemory makes a directory a file system in memory, of so many bytes, unless it is one; optional: a tmpfs.
	MountMemory func(dir string, size int64) error

	// Dir is the node's directory for pods/<uid>/, what the kubelet knows of them, and Disk that for what pods write: pods/<uid>/ (volumes and
	// logs) and rootfs/ (the node's own tree, which hostPath volumes see). Disk is optional: Dir.
	Dir, Disk string
	// DiskLayers has the writable layers of containers there, too: Disk is on a file system that overlayfs takes for them. Without it they are
	// in memory.
	DiskLayers bool
	// Distribution gives the root of what else they see, read-only: the distribution that containers have.
	Distribution func(context.Context) (dir string, err error)
	CNIConfDir   string
	CNIBinDirs   []string
	CNICacheDir  string
	// ConfigureCNI writes the CNI configuration for the pod ranges that the API gives the node (spec.podCIDRs). Optional: the configuration is
	// there. With it pods wait until the node has its ranges.
	ConfigureCNI func(pods []netip.Prefix) error

	ClusterDNS    netip.Addr // optional: pods then have the node's name server
	ClusterDomain string     // optional: cluster.local
	NodeDNS       netip.Addr // the node's name server; optional: Azure's 168.63.129.16

	// OnNode runs a command that a privileged container with the node's network and processes is asked to run, in its place, on the node
	// itself: a container of a light node could not do what it does on a real one. Optional; it returns false for commands that the
	// container is to run.
	OnNode func(ctx context.Context, image string, args []string, s container.Streams) (ran bool, err error)

	// Port is the kubelet server's in the node's namespace; optional: 10250. TLSCert is its certificate. Clients must show one signed
	// by ClientCA, with the common name ClientName (optional: kube-apiserver-kubelet-client) or of the organization system:masters.
	Port       int
	TLSCert    tls.Certificate
	ClientCA   *x509.CertPool
	ClientName string

	Clock clock.Clock // optional
	// Log gets one line per fault that no pod shows; optional.
	Log func(format string, args ...any)
}

func (c *Config) complete() error {
	var faults []error
	need := func(ok bool, what string) {
		if !ok {
			faults = append(faults, fmt.Errorf("kubelet: %s must be set", what))
		}
	}
	need(c.Node != nil && c.Node.Name != "", "Node with a name")
	need(c.Client != nil, "Client")
	need(c.Shared != nil, "Shared")
	need(c.Runtime != nil, "Runtime")
	need(c.Resolve != nil, "Resolve")
	need(c.Sandbox != nil, "Sandbox")
	need(c.NodeNS != nil, "NodeNS")
	need(c.PodNetNSDir != "", "PodNetNSDir")
	need(c.Dir != "", "Dir")
	need(c.Node == nil || nodeIP(c.Node).IsValid(), "an InternalIP among Node's addresses")
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	c.defaults()
	return nil
}

func (c *Config) defaults() {
	if c.Disk == "" {
		c.Disk = c.Dir
	}
	if c.NewNetNS == nil {
		c.NewNetNS = namespaceOf(kernel.CreateNamespace)
	}
	if c.OpenNetNS == nil {
		c.OpenNetNS = namespaceOf(kernel.OpenNamespace)
	}
	if c.RemoveNetNS == nil {
		c.RemoveNetNS = kernel.RemoveNamespace
	}
	if c.Images == nil {
		c.Images = func() []corev1.ContainerImage { return nil }
	}
	if c.MountMemory == nil {
		c.MountMemory = mountMemory
	}
	if c.ClusterDomain == "" {
		c.ClusterDomain = "cluster.local"
	}
	if !c.NodeDNS.IsValid() {
		c.NodeDNS = netip.AddrFrom4([4]byte{168, 63, 129, 16})
	}
	if c.Port == 0 {
		c.Port = 10250
	}
	if c.ClientName == "" {
		c.ClientName = nodeapi.APIServerName
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
}

func namespaceOf(f func(string) (*kernel.Namespace, error)) func(string) (Namespace, error) {
	return func(path string) (Namespace, error) {
		ns, err := f(path)
		if err != nil {
			return nil, err
		}
		return ns, nil
	}
}
