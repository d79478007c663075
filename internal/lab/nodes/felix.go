package nodes

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/pods/isolation"
	"packetwalk.dev/internal/pods/realnode"
)

// startFelix starts a node's felix, or takes over the one that runs, where the cluster has Calico.
func (a Agents) startFelix(ctx context.Context, n *Node) error {
	path, err := a.Nodes.Binaries.FelixProgram(a.Nodes.Cluster())
	if path == "" || err != nil {
		return err
	}
	p := supervise.Process{
		Name: n.Name + ".calico-felix", Path: path, LogFile: a.Nodes.Dir.Log(n.Name + ".calico-felix"), PidFile: a.Nodes.Dir.FelixPid(n.Name),
		Env: append(plan.FelixEnvironment(n.Name, a.Nodes.Dir.FelixKubeconfig(n.Name), iptablesBackend()), "PATH="+program.Path),
	}
	if n.Runtime == cluster.RuntimeContainerd {
		// env is the node's; it becomes felix.
		args := append(plan.FelixEnvironment(n.Name, realnode.FelixKubeconfig, iptablesBackend()), realnode.Felix)
		p.Path, p.Env = a.Nodes.Binaries.App, nil
		p.Args = isolation.NodeArgs(a.Nodes.Dir.MachinePid(n.Name), "/usr/bin/env", args)
	}
	if err := lifecycle.EndOthers(ctx, n.ns, p); err != nil {
		return err
	}
	if err := ruleset.RestoreIPTables(ctx, n.ns, iptablesHint, true); err != nil {
		return err
	}
	felix, err := a.Nodes.Run(n.ns, p)
	if err != nil {
		return err
	}
	a.Nodes.setProcess(&n.felix, felix)
	return nil
}

// iptablesHint makes the chain by which a kubelet shows which iptables it uses. Felix looks for it even where its backend is set. Before a
// kubelet has made it, felix lists legacy's tables too, which makes them (felix/environment/feature_detect_linux.go: DetectBackend); the
// kernel cannot trace a packet there.
const iptablesHint = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n"

// iptablesBackend returns the variant of iptables that the machine, and so each node, has chosen (update-alternatives(1)), in felix's
// words.
func iptablesBackend() string {
	if target, err := os.Readlink("/etc/alternatives/iptables"); err == nil && strings.HasSuffix(target, "-legacy") {
		return "Legacy"
	}
	return "NFT"
}

// writeFelixKubeconfig writes felix's kubeconfig of a node, where the cluster has Calico.
func (m Machines) writeFelixKubeconfig(n *Node, kubeconfig func(controlplane.User) ([]byte, error)) error {
	if m.Nodes.Cluster().CalicoVersion() == "" {
		return nil
	}
	text, err := kubeconfig(controlplane.FelixUser)
	if err != nil {
		return err
	}
	return atomicfile.Write(m.Nodes.Dir.FelixKubeconfig(n.Name), text, 0o600)
}

// PolicyEngine waits for, and reports on, the felix of each node.
type PolicyEngine struct {
	nodes *Nodes

	mu      sync.Mutex
	blocked map[string]felixWords // by list
	failure felixWords
	output  string // of a program, the last that felix logged
}

// NewPolicyEngine returns the policy engine of the nodes.
func NewPolicyEngine(n *Nodes) *PolicyEngine {
	return &PolicyEngine{nodes: n, blocked: map[string]felixWords{}}
}

// Start returns when each node's felix has written its rules.
func (p *PolicyEngine) Start(ctx context.Context) error {
	for _, n := range p.nodes.List() {
		for p.nodes.felixOf(n) != nil && !n.felixReady() {
			if !pause.For(ctx, lookPause) {
				return fmt.Errorf("calico-felix of %s has not written its rules: %w", n.Name, context.Cause(ctx))
			}
		}
	}
	p.nodes.Keep(ctx, "the watch of what felix refuses", p.followFelix)
	return nil
}

// felixOf returns what keeps a node's felix running, nil without one.
func (l *Nodes) felixOf(n *Node) *supervise.Supervisor {
	l.mu.Lock()
	defer l.mu.Unlock()
	return n.felix
}

// felixReady reports whether the rules of a node are in sync. While felix waits for Calico's resources it is ready, too, but without the
// component that writes rules (felix/dataplane/linux/int_dataplane.go, healthName).
func (n *Node) felixReady() bool {
	status, components := getFromNode(n, plan.FelixHealthPort, "/readiness")
	return status == http.StatusOK && bytes.Contains(components, []byte("InternalDataplaneMainLoop"))
}

// Report adds the nodes whose rules are not in sync, and what felix says.
func (p *PolicyEngine) Report(s *status.Status) {
	var unready []string
	down := false
	for _, n := range p.nodes.List() {
		switch felix := p.nodes.felixOf(n); {
		case felix == nil:
		case felix.State().Pid == 0:
			down = true
		case !n.felixReady():
			unready = append(unready, n.Name)
		}
	}
	if len(unready) > 0 {
		s.Problems = append(s.Problems, fmt.Sprintf("calico-felix is not ready on %s: its rules stay as they are, and no change of a policy has an effect",
			strings.Join(unready, ", ")))
	}
	if failure := p.lastFailure(); failure != "" && (down || len(unready) > 0) {
		s.Problems = append(s.Problems, failure)
	}
	s.Problems = append(s.Problems, p.unreadable()...)
}
