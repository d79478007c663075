package lab

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/pods/kubelet"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/source"
)

// A node is a Kubernetes node: a network namespace, an agent in it, and a kubelet in this process.
type node struct {
	cluster.Node
	ns      *kernel.Namespace
	agent   *supervise.Supervisor
	proxy   *supervise.Supervisor // upstream's kube-proxy; nil without
	kubelet *kubelet.Kubelet      // of a light node
	machine *supervise.Supervisor // of a real one
	stop    context.CancelFunc    // ends the keeping of the kubelet; nil before it is started
	done    <-chan struct{}       // closes when it has ended
	pods    netip.Prefix          // of kubenet, in its CNI configuration; invalid before it is known
}

// nodes are the lab's nodes. Three parts are theirs: what nodes are before anything runs on them (machines), their agents, and their
// kubelets, which is the one that changes.
type nodes struct {
	*core
	azure   *azure
	access  *access
	api     *api
	routes  *routes
	library *library

	shared   *kubelet.Shared
	client   kubernetes.Interface // the kubelets'
	clientCA *x509.CertPool

	real realNodes

	mu  sync.Mutex
	all []*node
}

func (n *nodes) list() []*node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.all)
}

// dialer chooses where the API server's connection to a node, pod or service is opened: at the node itself, else at any node.
func (n *nodes) dialer(target netip.AddrPort) dialFunc {
	all := n.list()
	for _, one := range all {
		if one.Address == target.Addr() {
			return one.ns.Dial
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[0].ns.Dial // nodes leave from the end
}

// machines makes what the nodes are before anything runs on them.
type machines struct {
	still
	nodes *nodes
}

func (m machines) Start(context.Context) error {
	for _, spec := range plan.Nodes(m.nodes.cluster(), m.nodes.azure.network()) {
		if _, err := m.nodes.makeNode(spec); err != nil {
			return fmt.Errorf("node %s: %w", spec.Name, err)
		}
	}
	return nil
}

// makeNode makes a node's namespace, NIC and files. The node is nil only when there is no namespace.
func (l *nodes) makeNode(spec cluster.Node) (*node, error) {
	n := &node{Node: spec}
	var err error
	if n.ns, _, err = kernel.EnsureNamespace(l.dir.NetNS(spec.Name)); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.all = append(l.all, n)
	l.mu.Unlock()
	if err := l.azure.AttachNIC(spec.NIC, n.ns); err != nil {
		return n, err
	}
	return n, l.writeNodeFiles(n)
}

// writeNodeFiles writes what a node's administrator would: the agent's kubeconfig and the CNI configuration.
func (l *nodes) writeNodeFiles(n *node) error {
	dir := l.dir.Node(n.Name)
	conf := filepath.Join(dir, "cni", "net.d")
	if err := os.MkdirAll(conf, 0o700); err != nil {
		return err
	}
	kubeconfig, err := l.access.ca.Kubeconfig(l.dir.Name(), l.access.plane.Server(), controlplane.NodeAgentUser, time.Now())
	if err != nil {
		return err
	}
	err = errors.Join(atomicfile.Write(filepath.Join(dir, "kubeconfig"), kubeconfig, 0o600),
		writeResolvConf(dir, resolvConf(plan.AzureResolver)))
	if l.cluster().Spec.Network.Plugin == cluster.PluginAzure {
		err = errors.Join(err, l.writeConflist(n, netip.Prefix{}))
	}
	return err
}

// writeConflist writes the node's CNI configuration; pods is the node's part of kubenet's range.
func (l *nodes) writeConflist(n *node, pods netip.Prefix) error {
	l.mu.Lock()
	n.pods = pods
	l.mu.Unlock()
	return l.rewriteConflist(n, l.cluster())
}

// rewriteConflist writes the CNI configuration that a node has in a cluster, if it had one.
func (l *nodes) rewriteConflist(n *node, c *cluster.Cluster) error {
	l.mu.Lock()
	pods := n.pods
	l.mu.Unlock()
	if c.Spec.Network.Plugin == cluster.PluginNone || c.Spec.Network.Plugin == cluster.PluginKubenet && !pods.IsValid() {
		return nil
	}
	dir := filepath.Join(l.dir.Node(n.Name), "cni")
	state := filepath.Join(dir, "state")
	if n.Runtime == cluster.RuntimeContainerd {
		state = realnode.PluginStateDir
	}
	name, list, err := plan.Conflist(c, n.Node, pods, state)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, "net.d", name), list, 0o600)
}

// Start starts the nodes' kubelets and returns when every node is registered and Ready.
func (n *nodes) Start(ctx context.Context) error {
	client, err := n.access.clientAs(controlplane.KubeletUser)
	if err != nil {
		return err
	}
	n.client, n.shared, n.clientCA = client, kubelet.NewShared(client), x509.NewCertPool()
	n.clientCA.AppendCertsFromPEM(n.access.ca.Certificate)
	go n.shared.Run(ctx)
	var g errgroup.Group
	all := n.list()
	for _, one := range all {
		g.Go(func() error { return n.startKubelet(ctx, one) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	n.done("%d of %d nodes %s", len(all), len(all), n.upWord())
	return nil
}

func (n *nodes) Stop() {
	for _, one := range n.list() {
		one.end()
		if one.machine != nil {
			one.machine.Detach()
		}
	}
}

func (n *nodes) Report(s *Status) {
	for _, one := range n.list() {
		n.mu.Lock()
		status := one.status()
		n.mu.Unlock()
		if status.Machine != nil {
			status.Pods, status.Error = n.realStatus(one)
		}
		s.Nodes = append(s.Nodes, status)
	}
	if err := n.shared.Fault(); err != nil {
		s.Problems = append(s.Problems, "the nodes' kubelets: "+oneLine(err))
	}
	s.Problems = append(s.Problems, agentFaults(askAgents[faultReport](n, "/faults"))...)
}

// faultReport is what is read of what packetwalk-node cannot do.
type faultReport struct {
	Unhealthy []string `json:"unhealthy"`
}

// agentFaults says once what many nodes say.
func agentFaults(reports []faultReport) (problems []string) {
	var said []string
	for _, r := range reports {
		said = append(said, r.Unhealthy...)
	}
	return saidBy("packetwalk-node", len(reports), said)
}

// kubeletConfig is what a node's kubelet has for itself.
func (l *nodes) kubeletConfig(n *node) (kubelet.Config, error) {
	cert, err := l.access.ca.Kubelet(n.Name, n.Address, time.Now())
	if err != nil {
		return kubelet.Config{}, err
	}
	dir := l.dir.Node(n.Name)
	config := kubelet.Config{
		Node:    plan.NodeObject(l.cluster(), n.Node),
		Runtime: kubelet.FromRuntime(l.runtime), Distribution: l.builtIn.Root, Resolve: l.library.finder().Image,
		Sandbox: func(ctx context.Context) (source.Image, error) { return l.builtIn.Image(ctx, "pause") }, Images: l.library.listed,
		Unbounded:   l.unbounded,
		NodeNS:      n.ns,
		PodNetNSDir: filepath.Join(l.dir.PodNetNSDir(), n.Name),
		Dir:         dir,
		Disk:        l.dir.nodeDisk(n.Name),
		DiskLayers:  l.noDisk == "",
		CNIConfDir:  filepath.Join(dir, "cni", "net.d"),
		CNIBinDirs:  []string{filepath.Dir(l.bin.CNI)},
		CNICacheDir: filepath.Join(dir, "cni", "cache"),
		Client:      l.client,
		Shared:      l.shared,
		ClientCA:    l.clientCA,
		ClusterDNS:  l.cluster().Spec.Network.DNSServiceIP,
		TLSCert:     cert,
		OnNode:      l.onNode(n),
		Log:         func(format string, a ...any) { l.log.Warn(fmt.Sprintf(format, a...), "node", n.Name) },
	}
	if l.cluster().Spec.Network.Plugin == cluster.PluginKubenet {
		config.ConfigureCNI = func(pods []netip.Prefix) error { return l.writeConflist(n, pods[0]) }
	}
	return config, nil
}

// startKubelet runs the node's kubelet and returns when the node is Ready. From then on a kubelet that gives up is replaced.
func (l *nodes) startKubelet(ctx context.Context, n *node) error {
	if n.Runtime == cluster.RuntimeContainerd {
		return l.startMachine(ctx, n)
	}
	config, err := l.kubeletConfig(n)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	ready, ended, err := l.runKubelet(ctx, n, config)
	if err != nil {
		stop()
		return err
	}
	over := make(chan struct{})
	n.stop, n.done = stop, over
	select {
	case <-ready:
		n.done = l.keep(ctx, "the kubelet of "+n.Name, func(ctx context.Context) error {
			if ended == nil { // the first one has: its pods do not notice
				if _, ended, err = l.runKubelet(ctx, n, config); err != nil {
					return err
				}
			}
			defer func() { ended = nil }()
			return <-ended
		})
		return nil
	case err = <-ended:
	case <-time.After(patience):
		stop()
		err = errors.Join(fmt.Errorf("not ready within %v", patience), <-ended)
	}
	close(over)
	return fmt.Errorf("kubelet of %s: %w", n.Name, err)
}

func (l *nodes) runKubelet(ctx context.Context, n *node, config kubelet.Config) (ready <-chan struct{}, ended <-chan error, err error) {
	k, err := kubelet.New(config)
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	n.kubelet = k
	l.mu.Unlock()
	end := make(chan error, 1)
	go func() { end <- k.Run(ctx) }()
	return k.Ready(), end, nil
}

// stateOf is nil for a process that there is not.
func stateOf(s *supervise.Supervisor) *Component {
	if s == nil {
		return nil
	}
	state := s.State()
	return &state
}

func (n *node) status() Node {
	s := Node{Name: n.Name, Address: n.Address.String()}
	if n.agent != nil {
		s.Agent = n.agent.State()
	}
	s.Machine, s.KubeProxy = stateOf(n.machine), stateOf(n.proxy)
	if n.kubelet != nil {
		k := n.kubelet.Status()
		s.Pods = k.Pods
		if k.Fault != nil {
			s.Error = oneLine(k.Fault)
		}
	}
	return s
}
