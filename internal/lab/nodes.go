package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/imageservice"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/pods/realnode"
)

// A node is a Kubernetes node: a network namespace, an agent in it, and the machine that runs its pods.
type node struct {
	cluster.Node
	ns      *netns.Namespace
	agent   *supervise.Supervisor
	proxy   *supervise.Supervisor // upstream's kube-proxy; nil without
	felix   *supervise.Supervisor // Calico's agent; nil without
	machine *supervise.Supervisor
	stop    context.CancelFunc // ends what the lab does beside the machine; nil before it is started
	done    <-chan struct{}    // closes when it has ended
	pods    netip.Prefix       // of kubenet, in its CNI configuration; invalid before it is known
}

// nodes are the lab's nodes. Three parts are theirs: what nodes are before anything runs on them (machines), their agents, and their
// kubelets, which is the one that changes.
type nodes struct {
	*lifecycle.Env
	azure   *network.Network
	access  *apiserver.Access
	api     *apiserver.Server
	routes  *routes
	library *imageservice.Service

	real realNodes

	mu  sync.Mutex
	all []*node
}

func (l *nodes) list() []*node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// dialer chooses where the API server's connection to a node, pod or service is opened: at the node itself, else at any node.
func (l *nodes) dialer(target netip.AddrPort) apiserver.DialFunc {
	all := l.list()
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
	nodes *nodes
}

func (m machines) Start(context.Context) error {
	network := m.nodes.azure.Current()
	specs := plan.Nodes(m.nodes.Cluster(), network)
	if cut := m.nodes.azure.Pending; cut.Source != nil { // nodes of pools that were about to leave
		for _, spec := range plan.Nodes(cut.From, network) {
			_, placed := network.NIC(spec.NIC)
			if placed && !slices.ContainsFunc(specs, func(s cluster.Node) bool { return s.Name == spec.Name }) {
				specs = append(specs, spec)
			}
		}
	}
	for _, spec := range specs {
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
	if n.ns, _, err = netns.Ensure(l.Dir.NetNS(spec.Name)); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.all = append(l.all, n)
	l.mu.Unlock()
	if err := l.azure.AttachNIC(spec.NIC, n.ns); err != nil {
		return n, err
	}
	// As on AKS's nodes from the start (AgentBaker, 99-force-bridge-forward.conf): one without a pod forwards for node ports, too.
	if err := n.ns.SetSysctls(netns.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}); err != nil {
		return n, err
	}
	return n, l.writeNodeFiles(n)
}

// writeNodeFiles writes what a node's administrator would: the agent's kubeconfig and the CNI configuration.
func (l *nodes) writeNodeFiles(n *node) error {
	dir := l.Dir.Node(n.Name)
	conf := filepath.Join(dir, "cni", "net.d")
	if err := os.MkdirAll(conf, 0o700); err != nil {
		return err
	}
	kubeconfigOf := func(user controlplane.User) ([]byte, error) {
		return l.access.CA.Kubeconfig(l.Dir.Name(), l.access.Config.Server(), user, time.Now())
	}
	kubeconfig, err := kubeconfigOf(controlplane.NodeAgentUser)
	if err != nil {
		return err
	}
	err = errors.Join(l.writeFelixKubeconfig(n, kubeconfigOf), atomicfile.Write(filepath.Join(dir, "kubeconfig"), kubeconfig, 0o600),
		writeResolvConf(dir, resolvConf(plan.AzureResolver)))
	if l.Cluster().Spec.Network.Plugin == cluster.PluginAzure {
		err = errors.Join(err, l.writeConflist(n, netip.Prefix{}))
	}
	return err
}

// writeConflist writes the node's CNI configuration; pods is the node's part of kubenet's range.
func (l *nodes) writeConflist(n *node, pods netip.Prefix) error {
	l.mu.Lock()
	n.pods = pods
	l.mu.Unlock()
	return l.rewriteConflist(n, l.Cluster())
}

// rewriteConflist writes the CNI configuration that a node has in a cluster, if it had one.
func (l *nodes) rewriteConflist(n *node, c *cluster.Cluster) error {
	l.mu.Lock()
	pods := n.pods
	l.mu.Unlock()
	if c.Spec.Network.Plugin == cluster.PluginNone || c.Spec.Network.Plugin == cluster.PluginKubenet && !pods.IsValid() {
		return nil
	}
	dir := filepath.Join(l.Dir.Node(n.Name), "cni")
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
func (l *nodes) Start(ctx context.Context) error {
	var g errgroup.Group
	all := l.list()
	for _, one := range all {
		g.Go(func() error { return l.startKubelet(ctx, one) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	l.Done("%d of %d nodes %s", len(all), len(all), l.upWord())
	return nil
}

// Stop leaves the nodes' processes running.
func (l *nodes) Stop() {
	for _, one := range l.list() {
		one.end()
		if one.machine != nil {
			one.machine.Detach()
		}
	}
}

// Report adds the nodes and what their agents cannot do.
func (l *nodes) Report(s *status.Status) {
	for _, one := range l.list() {
		l.mu.Lock()
		status := one.status()
		l.mu.Unlock()
		if status.Machine != nil {
			status.Pods, status.Error = l.realStatus(one)
		}
		s.Nodes = append(s.Nodes, status)
	}
	s.Problems = append(s.Problems, agentFaults(askAgents[faultReport](l, "/faults"))...)
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
	return joinReports("packetwalk-node", len(reports), said)
}

// startKubelet runs the node's kubelet and returns when the node is Ready.
func (l *nodes) startKubelet(ctx context.Context, n *node) error {
	if n.Runtime == cluster.RuntimeSimulated {
		return l.startSimulated(ctx, n)
	}
	return l.startMachine(ctx, n)
}

// stateOf is nil for a process that there is not.
func stateOf(s *supervise.Supervisor) *status.Component {
	if s == nil {
		return nil
	}
	state := s.State()
	return &state
}

func (n *node) status() status.Node {
	s := status.Node{Name: n.Name, Address: n.Address.String()}
	if n.agent != nil {
		s.Agent = n.agent.State()
	}
	s.Machine, s.KubeProxy, s.CalicoFelix = stateOf(n.machine), stateOf(n.proxy), stateOf(n.felix)
	return s
}
