package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/pods/isolation"
	"packetwalk.dev/internal/pods/realnode"
)

// Agents are what runs on nodes beside their kubelets: packetwalk-node, and felix, kube-proxy and LocalDNS where the cluster asks for them.
type Agents struct {
	Nodes *Nodes
}

// Start starts the agents of all nodes, or takes over those that run.
func (a Agents) Start(ctx context.Context) error {
	for _, n := range a.Nodes.List() {
		if err := a.startAgent(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// proxiesAtOnce is on how many nodes the service proxy changes at the same time: each change runs a large program.
const proxiesAtOnce = 4

// Change gives agents other flags, by new processes, and nodes another service proxy.
func (a Agents) Change(ctx context.Context, c lifecycle.Change) error {
	var g errgroup.Group
	g.SetLimit(proxiesAtOnce)
	for _, n := range a.Nodes.List() {
		g.Go(func() error {
			if err := a.changeAgent(ctx, n, c); err != nil {
				return fmt.Errorf("service proxy of %s: %w", n.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Stop leaves the agents running.
func (a Agents) Stop() {
	for _, n := range a.Nodes.List() {
		for _, process := range []*supervise.Supervisor{n.agent, n.proxy, n.felix, n.localDNS} {
			if process != nil {
				process.Detach()
			}
		}
	}
}

// agentCommand runs packetwalk-node as a node of a real cluster would: among the node's processes, where it is a machine of its own.
func (a Agents) agentCommand(c *cluster.Cluster, n *Node) supervise.Process {
	p := supervise.Process{
		Name: n.Name, Path: a.Nodes.Binaries.Node, LogFile: a.Nodes.Dir.Log(n.Name),
		PidFile: filepath.Join(a.Nodes.Dir.Node(n.Name), "agent.pid"),
		Args:    plan.AgentFlags(c, n.Node, a.Nodes.agentKubeconfig(n)),
	}
	if n.Runtime == cluster.RuntimeContainerd {
		p.Path = a.Nodes.Binaries.App
		p.Args = isolation.NodeArgs(a.Nodes.Dir.MachinePid(n.Name), realnode.NodeAgent, plan.AgentFlags(c, n.Node, realnode.NodeAgentKubeconfig))
	}
	return p
}

// agentKubeconfig returns the file of a node's agent.
func (l *Nodes) agentKubeconfig(n *Node) string {
	return filepath.Join(l.Dir.Node(n.Name), "kubeconfig")
}

// startAgent starts a node's agent, its felix, its kube-proxy and its DNS cache, or takes over those that run.
func (a Agents) startAgent(ctx context.Context, n *Node) error {
	c := a.agentCommand(a.Nodes.Cluster(), n)
	if err := lifecycle.EndOthers(ctx, n.ns, c); err != nil {
		return err
	}
	if err := a.keepAgent(n, c); err != nil {
		return err
	}
	return errors.Join(a.startFelix(ctx, n), a.startProxy(ctx, a.Nodes.Cluster(), n), a.startLocalDNS(ctx, n))
}

// keepAgent has a command run as a node's agent.
func (a Agents) keepAgent(n *Node, c supervise.Process) error {
	agent, err := a.Nodes.Run(n.ns, c)
	if err != nil {
		return err
	}
	a.Nodes.setProcess(&n.agent, agent)
	return nil
}

// changeAgent brings a node's agent and service proxy from one cluster to another. The rules stay until the new proxy has its own.
func (a Agents) changeAgent(ctx context.Context, n *Node, c lifecycle.Change) error {
	if was, is := c.From.Spec.ServiceProxy, c.To.Spec.ServiceProxy; was.Implementation == cluster.ProxyPacketwalk && is == kubeProxyTables {
		// It would remove the rules of iptables before it has its own; of packetwalk-node's table it knows nothing.
		between := *c.To
		between.Spec.ServiceProxy = cluster.ServiceProxy{Implementation: cluster.ProxyPacketwalk, Backend: cluster.BackendNFTables,
			Rules: cluster.RulesCurrent}
		if err := a.replaceProxy(ctx, n, lifecycle.Change{From: c.From, To: &between, Deadline: c.Deadline}); err != nil {
			return err
		}
		c.From = &between
	}
	return errors.Join(a.replaceProxy(ctx, n, c), a.Nodes.rewriteConflist(n, c.To))
}

// kubeProxyTables is kube-proxy with nftables.
var kubeProxyTables = cluster.ServiceProxy{Implementation: cluster.ProxyKubeProxy, Backend: cluster.BackendNFTables,
	Rules: cluster.RulesCurrent}

func (a Agents) replaceProxy(ctx context.Context, n *Node, c lifecycle.Change) error {
	ctx, cancel := c.Deadline.Bound(ctx)
	defer cancel()
	was, is := c.From.Spec.ServiceProxy, c.To.Spec.ServiceProxy
	if was != is && n.proxy != nil {
		if err := n.proxy.Stop(); err != nil {
			return err
		}
		a.Nodes.setProcess(&n.proxy, nil)
	}
	what := a.agentCommand(c.To, n)
	if !slices.Equal(what.Args, a.agentCommand(c.From, n).Args) {
		if err := n.agent.Stop(); err != nil {
			return err
		}
		if err := a.keepAgent(n, what); err != nil {
			return err
		}
	}
	if was == is {
		return nil
	}
	if n.proxy == nil {
		if err := a.startProxy(ctx, c.To, n); err != nil {
			return err
		}
	}
	if err := written(ctx, n, is.Implementation); err != nil {
		return err
	}
	return a.dropRules(ctx, n, was, is)
}

// startProxy starts a node's kube-proxy, or takes over the one that runs, where the cluster asks for one.
func (a Agents) startProxy(ctx context.Context, c *cluster.Cluster, n *Node) error {
	what := c.Spec.ServiceProxy
	config := filepath.Join(a.Nodes.Dir.Node(n.Name), "kube-proxy."+string(what.Backend)+".json")
	p := supervise.Process{
		Name: n.Name + ".kube-proxy", Path: a.Nodes.Binaries.ControlPlane, Args: []string{"kube-proxy", "--config=" + config},
		Env: a.proxyEnvironment(), LogFile: a.Nodes.Dir.Log(n.Name + ".kube-proxy"), PidFile: a.Nodes.Dir.ProxyPid(n.Name),
	}
	wanted := what.Implementation == cluster.ProxyKubeProxy
	if !wanted {
		p.Args = p.Args[:1] // every kube-proxy is another, whatever its arguments
	}
	if err := lifecycle.EndOthers(ctx, n.ns, p); err != nil {
		return err
	}
	if !wanted {
		if err := os.Remove(p.PidFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := plan.KubeProxyConfig(c, n.Name, a.Nodes.agentKubeconfig(n))
	if err != nil {
		return err
	}
	if err := errors.Join(a.writeNoModules(), atomicfile.Write(config, text, 0o600)); err != nil {
		return err
	}
	s, err := a.Nodes.Run(n.ns, p)
	if err == nil {
		a.Nodes.setProcess(&n.proxy, s)
	}
	return err
}

func (a Agents) writeNoModules() error {
	if err := os.MkdirAll(a.Nodes.Dir.NoModules(), 0o700); err != nil {
		return err
	}
	err := os.Symlink("/bin/false", filepath.Join(a.Nodes.Dir.NoModules(), "modprobe"))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func (a Agents) proxyEnvironment() []string {
	return []string{"PATH=" + a.Nodes.Dir.NoModules() + ":" + program.Path}
}

// cleanUpTime is how long kube-proxy may take to remove all of a node's rules.
const cleanUpTime = 30 * time.Second

// dropRules removes the rules of the service proxy that was there, where the one that is now does not: packetwalk-node removes those of all
// others, kube-proxy those of its own other backend, and rules with iptables have the same names whoever writes them.
func (a Agents) dropRules(ctx context.Context, n *Node, was, is cluster.ServiceProxy) error {
	switch {
	case is.Implementation == cluster.ProxyPacketwalk:
		return nil
	case was.Implementation == cluster.ProxyPacketwalk && was.Backend == cluster.BackendNFTables:
		return ruleset.ApplyNFT(ctx, n.ns, ownTables)
	case is.Implementation == cluster.ProxyNone:
		if err := a.writeNoModules(); err != nil {
			return err
		}
		_, err := program.Command{
			Path: a.Nodes.Binaries.ControlPlane, Args: []string{"kube-proxy", "--cleanup"}, Env: a.proxyEnvironment(), In: n.ns.Do,
			Limit: cleanUpTime,
		}.Output(ctx)
		return err
	}
	return nil
}

// ownTables are those of packetwalk-node with nftables; one that is not there is made first.
var ownTables = func() (script string) {
	for _, name := range nftables.TableNames {
		script += strings.ReplaceAll("table ip NAME\ndelete table ip NAME\ntable ip6 NAME\ndelete table ip6 NAME\n", "NAME", name)
	}
	return script
}()

// written waits until a node's service proxy has written the rules of all services. Its health would not tell: it is good from the start.
func written(ctx context.Context, n *Node, of cluster.Implementation) error {
	port := plan.AgentPort
	switch of {
	case cluster.ProxyNone:
		return nil
	case cluster.ProxyKubeProxy:
		port = plan.KubeProxyPort
	}
	for !wroteAll(askNode(n, port, "/metrics")) {
		if !pause.For(ctx, lookPause) {
			return fmt.Errorf("%s has not written its rules: %w", of, context.Cause(ctx))
		}
	}
	return nil
}

// wroteAll tells by a service proxy's metrics whether it has written the rules of each family that it serves: kube-proxy and
// packetwalk-node ask for the rules of all of them when they start.
func wroteAll(metrics []byte) bool {
	has := func(what, family string) bool {
		const series = "\nkubeproxy_sync_proxy_rules_last_%s_seconds{ip_family=%q" // more labels may follow
		return bytes.Contains(metrics, fmt.Appendf(nil, series, what, family))
	}
	any := false
	for _, family := range []service.Family{service.IPv4, service.IPv6} {
		written := has("timestamp", family.String())
		if !written && has("queued_timestamp", family.String()) {
			return false
		}
		any = any || written
	}
	return any
}
