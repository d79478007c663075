// Package nodes runs a lab's Kubernetes nodes: each is a network namespace with packetwalk-node, and felix and kube-proxy where the cluster
// has them, and a machine with containerd and a kubelet, or the process of a simulated node. Nodes join and leave while the lab runs.
package nodes

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
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/lab/apiserver"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/imageservice"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/network"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/node/conflict"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/pods/realnode"
)

// A Node is a Kubernetes node: a network namespace, an agent in it, and the machine that runs its pods.
type Node struct {
	cluster.Node
	ns    *netns.Namespace
	agent *supervise.Supervisor
	proxy *supervise.Supervisor // upstream's kube-proxy; nil without
	felix *supervise.Supervisor // Calico's agent; nil without
	// localDNS is the node's DNS cache; nil without.
	localDNS *supervise.Supervisor
	machine  *supervise.Supervisor
	stop     context.CancelFunc // ends what the lab does beside the machine; nil before it is started
	done     <-chan struct{}    // closes when it has ended
	pods     netip.Prefix       // its part of podCIDR, in its CNI configuration; invalid before it is known, and without podCIDR
}

// Nodes are the lab's nodes with their kubelets, as a component. [Machines] makes them, and [Agents] runs their agents.
type Nodes struct {
	*lifecycle.Env
	Azure   *network.Network
	Access  *apiserver.Access
	API     *apiserver.Server
	Routes  PodRoutes
	Library *imageservice.Service
	Shared  SharedLayer

	mu  sync.Mutex
	all []*Node
}

// PodRoutes are the routes to the nodes' pods.
type PodRoutes interface {
	// Wait waits until each node has its route.
	Wait(ctx context.Context) error
}

// List returns the nodes that there are now.
func (l *Nodes) List() []*Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// setProcess sets one of a node's processes, which a status reads meanwhile.
func (l *Nodes) setProcess(field **supervise.Supervisor, s *supervise.Supervisor) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*field = s
}

// Dialer returns how the API server's connection to a node, pod or service is opened: at the node itself, else at any node; nil without
// nodes.
func (l *Nodes) Dialer(target netip.AddrPort) apiserver.DialFunc {
	all := l.List()
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

// Machines makes what the nodes are before anything runs on them.
type Machines struct {
	Nodes *Nodes
}

// Start makes the nodes of the cluster, and those that a change that was cut off had not removed yet.
func (m Machines) Start(context.Context) error {
	if err := m.Nodes.Dir.MakeNodesDir(); err != nil {
		return err
	}
	network := m.Nodes.Azure.Current()
	specs := plan.Nodes(m.Nodes.Cluster(), network)
	if cut := m.Nodes.Azure.Pending; cut.Source != nil { // nodes of pools that were about to leave
		for _, spec := range plan.Nodes(cut.From, network) {
			_, placed := network.NIC(spec.NIC)
			if placed && !slices.ContainsFunc(specs, func(s cluster.Node) bool { return s.Name == spec.Name }) {
				specs = append(specs, spec)
			}
		}
	}
	for _, spec := range specs {
		if _, err := m.makeNode(spec); err != nil {
			return fmt.Errorf("node %s: %w", spec.Name, err)
		}
	}
	return nil
}

// makeNode makes a node's namespace, NIC and files. The node is nil only when there is no namespace.
func (m Machines) makeNode(spec cluster.Node) (*Node, error) {
	n := &Node{Node: spec}
	var err error
	if n.ns, _, err = netns.Ensure(m.Nodes.Dir.NetNS(spec.Name)); err != nil {
		return nil, err
	}
	m.Nodes.mu.Lock()
	m.Nodes.all = append(m.Nodes.all, n)
	m.Nodes.mu.Unlock()
	if err := m.Nodes.Azure.AttachNIC(spec.NIC, n.ns); err != nil {
		return n, err
	}
	if err := n.ns.SetSysctls(nodeSettings.Sysctls...); err != nil {
		return n, err
	}
	return n, m.writeNodeFiles(n)
}

// writeNodeFiles writes what a node's administrator would: the agent's kubeconfig and the CNI configuration.
func (m Machines) writeNodeFiles(n *Node) error {
	dir := m.Nodes.Dir.Node(n.Name)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.MkdirAll(m.Nodes.networksDir(n), 0o700)); err != nil {
		return err
	}
	kubeconfigOf := func(user controlplane.User) ([]byte, error) {
		return m.Nodes.Access.CA.Kubeconfig(m.Nodes.Dir.Name(), m.Nodes.Access.Config.Server(), user, time.Now())
	}
	kubeconfig, err := kubeconfigOf(controlplane.NodeAgentUser)
	if err != nil {
		return err
	}
	err = errors.Join(m.writeFelixKubeconfig(n, kubeconfigOf), atomicfile.Write(filepath.Join(dir, "kubeconfig"), kubeconfig, 0o600),
		layout.WriteResolvConf(dir, plan.NodeResolver(m.Nodes.Cluster(), n.Node)))
	if m.Nodes.Cluster().Spec.Network.Plugin == cluster.PluginAzure {
		network := m.Nodes.Azure.Current()
		nic, _ := network.NIC(n.NIC)
		err = errors.Join(err, m.Nodes.writeConflist(n, nic.Overlay))
	}
	return err
}

// networksDir returns the directory of a node's CNI configuration. A containerd node's is on the lab's disk, which bounds what pods write
// to it.
func (l *Nodes) networksDir(n *Node) string {
	if n.Runtime == cluster.RuntimeContainerd {
		return filepath.Join(l.Dir.NodeState(n.Name), realnode.Networks)
	}
	return filepath.Join(l.Dir.Node(n.Name), "cni", "net.d")
}

// writeConflist writes the node's CNI configuration; pods is the node's part of podCIDR.
func (l *Nodes) writeConflist(n *Node, pods netip.Prefix) error {
	l.mu.Lock()
	n.pods = pods
	l.mu.Unlock()
	return l.rewriteConflist(n, l.Cluster())
}

// rewriteConflist writes the CNI configuration that a node has in a cluster, if it had one.
func (l *Nodes) rewriteConflist(n *Node, c *cluster.Cluster) error {
	l.mu.Lock()
	pods := n.pods
	l.mu.Unlock()
	if c.Spec.Network.Plugin == cluster.PluginNone || c.Spec.Network.Plugin == cluster.PluginKubenet && !pods.IsValid() {
		return nil
	}
	state := filepath.Join(l.Dir.Node(n.Name), "cni", "state")
	if n.Runtime == cluster.RuntimeContainerd {
		state = realnode.PluginStateDir
	}
	name, list, err := plan.Conflist(c, n.Node, pods, state)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(l.networksDir(n), name), list, 0o600)
}

// Start starts the nodes' kubelets and returns when every node is registered and Ready.
func (l *Nodes) Start(ctx context.Context) error {
	var g errgroup.Group
	all := l.List()
	for _, one := range all {
		g.Go(func() error { return kubelets{l}.startKubelet(ctx, one) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	l.Done("%d of %d nodes %s", len(all), len(all), l.upWord())
	return nil
}

// Stop leaves the nodes' processes running.
func (l *Nodes) Stop() {
	for _, one := range l.List() {
		one.end()
		if one.machine != nil {
			one.machine.Detach()
		}
	}
}

// Namespaces returns the nodes' network namespaces.
func (l *Nodes) Namespaces() []*netns.Namespace {
	var all []*netns.Namespace
	for _, one := range l.List() {
		all = append(all, one.ns)
	}
	return all
}

// Report adds the nodes and what their agents cannot do.
func (l *Nodes) Report(s *status.Status) {
	for _, one := range l.List() {
		l.mu.Lock()
		node := one.status()
		l.mu.Unlock()
		if node.Machine != nil {
			node.Pods, node.Error = l.realStatus(one)
		}
		s.Nodes = append(s.Nodes, node)
		for _, text := range l.missing(one) {
			s.Problems = append(s.Problems, text+status.RepairedByUp(s.Name))
		}
	}
	s.Problems = append(s.Problems, agentFaults(AskAgents[faultReport](l, "/faults"))...)
	s.Problems = append(s.Problems, l.orphans()...)
}

// orphans returns a sentence for each table of packetwalk-node on a node where no packetwalk-node keeps it, as far as the kernel says. A lab
// whose service proxy is packetwalk-node restarts one that ended, and reports that it is down.
func (l *Nodes) orphans() (problems []string) {
	if l.Cluster().Spec.ServiceProxy.Implementation == cluster.ProxyPacketwalk {
		return nil
	}
	for _, n := range l.List() {
		for _, table := range nftables.TableNames {
			for _, family := range []string{"ip", "ip6"} {
				if has, err := ruleset.HasTable(n.ns, family, table); err != nil || !has {
					continue
				}
				if runs, err := dump.HasAgent(n.ns, conflict.ServiceProxy); err == nil && !runs {
					problems = append(problems, nftables.Orphaned("node/"+n.Name, family, table))
				}
			}
		}
	}
	return problems
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
	return JoinReports("packetwalk-node", len(reports), said)
}

// kubelets starts the nodes' kubelets.
type kubelets struct{ *Nodes }

// startKubelet runs the node's kubelet and returns when the node is Ready.
func (k kubelets) startKubelet(ctx context.Context, n *Node) error {
	if n.Runtime == cluster.RuntimeSimulated {
		return k.startSimulated(ctx, n)
	}
	return k.startMachine(ctx, n)
}

// stateOf returns the state of a process, nil without a process.
func stateOf(s *supervise.Supervisor) *status.Component {
	if s == nil {
		return nil
	}
	state := s.State()
	return &state
}

func (n *Node) status() status.Node {
	s := status.Node{Name: n.Name, Address: n.Address.String()}
	if n.agent != nil {
		s.Agent = n.agent.State()
	}
	s.Machine, s.KubeProxy, s.CalicoFelix, s.LocalDNS = stateOf(n.machine), stateOf(n.proxy), stateOf(n.felix), stateOf(n.localDNS)
	return s
}
