package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/removetree"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/plan"
)

// Change makes the nodes those of a cluster: new ones join, all at once, and then those that are too many leave, one after the other,
// the one with the highest index first. When a node cannot join, all of the new ones are taken away again; one that cannot leave stays.
func (l *Nodes) Change(ctx context.Context, c lifecycle.Change) error {
	l.SetCluster(c.To)
	want := c.To.Nodes()
	if err := l.relabel(ctx, want); err != nil {
		return err
	}
	if err := l.joinNodes(ctx, want, c); err != nil {
		return lifecycle.PartialError{Err: err}
	}
	leaving := slices.DeleteFunc(l.List(), func(n *Node) bool { return slices.ContainsFunc(want, n.is) })
	slices.SortStableFunc(leaving, func(a, b *Node) int { return cmp.Compare(b.Index, a.Index) })
	for _, n := range leaving {
		if err := l.leave(ctx, n, c); err != nil {
			return lifecycle.PartialError{Err: fmt.Errorf("node %s: %w", n.Name, err)}
		}
	}
	return nil
}

// relabel gives nodes that stay the labels and taints that their pool has now, and takes those that it had and has no longer. Others stay.
func (l *Nodes) relabel(ctx context.Context, want []cluster.Node) error {
	for _, n := range l.List() {
		i := slices.IndexFunc(want, n.is)
		if i < 0 {
			continue
		}
		is := want[i]
		if maps.Equal(n.Labels, is.Labels) && slices.Equal(n.Taints, is.Taints) {
			continue
		}
		object, err := l.patched(ctx, n.Name, nil)
		if err != nil {
			return err
		}
		labels := map[string]any{}
		for key := range n.Labels {
			labels[key] = nil // null takes it away
		}
		for key, value := range is.Labels {
			labels[key] = value
		}
		was := plan.Taints(n.Taints)
		taints := slices.DeleteFunc(object.Spec.Taints, func(t corev1.Taint) bool {
			return slices.ContainsFunc(was, func(o corev1.Taint) bool { return t.MatchTaint(&o) })
		})
		// A list is replaced as a whole, and not if another one has changed it meanwhile.
		_, err = l.patched(ctx, n.Name, map[string]any{
			"metadata": map[string]any{"labels": labels, "resourceVersion": object.ResourceVersion},
			"spec":     map[string]any{"taints": append(taints, plan.Taints(is.Taints)...)},
		})
		if err != nil {
			return err
		}
		l.mu.Lock()
		n.Labels, n.Taints = is.Labels, is.Taints
		l.mu.Unlock()
	}
	return nil
}

// Counts returns how many nodes each pool has.
func (l *Nodes) Counts() map[string]int {
	counts := map[string]int{}
	for _, n := range l.List() {
		counts[n.Pool]++
	}
	return counts
}

func (n *Node) is(spec cluster.Node) bool { return n.Name == spec.Name }

// joinNodes brings up those nodes that are not there. The network has their NICs.
func (l *Nodes) joinNodes(ctx context.Context, want []cluster.Node, c lifecycle.Change) error {
	bounded, cancel := c.Deadline.Bound(ctx)
	defer cancel()
	var joining []*Node
	var g errgroup.Group
	for _, spec := range want {
		if slices.ContainsFunc(l.List(), func(n *Node) bool { return n.is(spec) }) {
			continue
		}
		n, err := Machines{l}.makeNode(spec)
		if n != nil {
			joining = append(joining, n)
		}
		g.Go(func() error {
			if err == nil {
				err = l.joinBefore(ctx, bounded, n)
			}
			if err != nil {
				return fmt.Errorf("node %s: %w", spec.Name, err)
			}
			c.Progress(lifecycle.Step{Text: fmt.Sprintf("node %s, %s, is %s", n.Name, n.Address, l.upWord())})
			return nil
		})
	}
	err := g.Wait()
	if err == nil && len(joining) > 0 {
		err = l.Routes.Wait(bounded)
	}
	if err == nil {
		return nil
	}
	for _, n := range joining {
		err = errors.Join(err, l.removeNode(context.WithoutCancel(ctx), n))
	}
	return err
}

// join starts what runs on a node and returns when it is Ready.
func (l *Nodes) join(ctx context.Context, n *Node) error {
	if err := (Agents{l}).startAgent(ctx, n); err != nil {
		return err
	}
	return kubelets{l}.startKubelet(ctx, n)
}

// joinBefore does what join does, which must be done before bounded ends. What it starts lives as long as ctx.
func (l *Nodes) joinBefore(ctx, bounded context.Context, n *Node) error {
	life, end := context.WithCancel(ctx)
	err := lifecycle.StartBefore(bounded, end, func() error { return l.join(life, n) })
	return cmp.Or(err, life.Err())
}

// A step is one thing to do, and what takes it back; nil for what need not be.
type step struct {
	do   func(context.Context) error
	undo func(context.Context) error
}

// inSteps does one after the other until the deadline. When one fails, it and those before it are taken back, the last first.
func inSteps(ctx context.Context, d lifecycle.Deadline, steps []step) error {
	bounded, cancel := d.Bound(ctx)
	defer cancel()
	for i, s := range steps {
		err := s.do(bounded)
		if err != nil && bounded.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(bounded), err)
		}
		if err == nil {
			continue
		}
		for _, back := range slices.Backward(steps[:i+1]) {
			if back.undo != nil {
				err = errors.Join(err, back.undo(ctx))
			}
		}
		return err
	}
	return nil
}

// leave takes a node out of the cluster as AKS does: cordoned, drained, out of the load balancer, and then gone with all it had. One that
// cannot be drained or removed stays as it was: schedulable, and in the load balancer's pools.
func (l *Nodes) leave(ctx context.Context, n *Node, c lifecycle.Change) error {
	c.Progress(lifecycle.Step{Text: "node " + n.Name + " is cordoned and drained"})
	was, err := l.patched(ctx, n.Name, nil)
	if err != nil {
		return err
	}
	_, excluded := was.Labels[corev1.LabelNodeExcludeBalancers]
	pools := plan.PoolsOf(l.Azure.Current(), n.NIC)
	err = inSteps(ctx, c.Deadline, []step{
		{l.marking(n, true, excluded), l.marking(n, was.Spec.Unschedulable, excluded)},
		{func(ctx context.Context) error { return drain(ctx, l.API.Client, n.Name, evictPatience) }, nil},
		{l.marking(n, true, true), nil}, // the service controller leaves it out
		{func(context.Context) error { return l.leavePools(n) }, func(context.Context) error { return l.joinPools(n, pools) }},
		{func(ctx context.Context) error { return l.removeNode(ctx, n) }, func(ctx context.Context) error { return l.rejoin(ctx, n) }},
	})
	if err == nil {
		c.Progress(lifecycle.Step{Text: "node " + n.Name + " is gone"})
	}
	return err
}

// marking makes a node schedulable or not, and a member of load balancers or not, also when the lab is about to end.
func (l *Nodes) marking(n *Node, unschedulable, excluded bool) func(context.Context) error {
	var label any // null takes it away
	if excluded {
		label = "true"
	}
	patch := map[string]any{
		"spec":     map[string]any{"unschedulable": unschedulable},
		"metadata": map[string]any{"labels": map[string]any{corev1.LabelNodeExcludeBalancers: label}},
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lifecycle.RequestTime)
		defer cancel()
		_, err := l.patched(ctx, n.Name, patch)
		return err
	}
}

func (l *Nodes) leavePools(n *Node) error {
	return l.edit(func(net *vnet.Network) { net.LeavePools(n.NIC) })
}

func (l *Nodes) joinPools(n *Node, names []string) error {
	return l.edit(func(net *vnet.Network) { plan.JoinPools(net, n.NIC, names) })
}

func (l *Nodes) edit(change func(*vnet.Network)) error {
	return l.Azure.Update(func(net *vnet.Network) error {
		change(net)
		return nil
	})
}

// rejoin makes anew what removeNode took of a node: all but its NIC, which goes last.
func (l *Nodes) rejoin(ctx context.Context, n *Node) error {
	n.end()
	l.forget(n)
	again, err := Machines{l}.makeNode(n.Node)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, lifecycle.DefaultTimeout, fmt.Errorf("not done within %v", lifecycle.DefaultTimeout))
	defer cancel()
	return l.joinBefore(ctx, bounded, again)
}

func (l *Nodes) forget(n *Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(l.all, func(o *Node) bool { return o == n })
}

// end ends a node's kubelet, if it has one, and waits for that.
func (n *Node) end() {
	if n.stop != nil {
		n.stop()
		<-n.done
	}
}

// removeNode ends what runs on a node and takes away all that there is of it, its NIC with its addresses last: a lab process that is killed
// on the way finds the node by that, and removes the rest. Its log stays, for the next of that name.
func (l *Nodes) removeNode(ctx context.Context, n *Node) error {
	if n.stop != nil {
		n.stop()
	}
	for _, process := range []*supervise.Supervisor{n.agent, n.proxy, n.felix, n.machine, n.localDNS} {
		if process == nil {
			continue
		}
		if err := process.Stop(); err != nil {
			return fmt.Errorf("stop what runs on %s: %w", n.Name, err)
		}
	}
	pods := filepath.Join(l.Dir.PodNetNSDir(), n.Name)
	spaces, err := netns.OpenMounted(pods)
	if err != nil {
		return err
	}
	defer netns.CloseAll(spaces)
	if err := netns.KillIn(ctx, append(spaces, n.ns)...); err != nil {
		return fmt.Errorf("end the processes of %s: %w", n.Name, err)
	}
	n.end()
	if err := l.forgetNode(ctx, n.Name); err != nil {
		return err
	}
	for _, ns := range spaces {
		if err := ns.Remove(); err != nil {
			return err
		}
	}
	err = errors.Join(n.ns.Remove(), removetree.Remove(l.Dir.Node(n.Name)), removetree.Remove(pods), l.Dir.RemoveNodeState(n.Name))
	if err != nil {
		return fmt.Errorf("remove %s: %w", n.Name, err)
	}
	if err := l.releaseNode(n); err != nil {
		return err
	}
	l.forget(n)
	return nil
}

// releaseNode gives back what the network has of a node: its NIC with its addresses, and its route.
func (l *Nodes) releaseNode(n *Node) error {
	table, _, routed := l.Cluster().PodRouteTable()
	return l.edit(func(net *vnet.Network) {
		net.ReleaseNIC(n.NIC)
		if routed {
			net.DeleteRoute(table, n.Name)
		}
	})
}

// forgetNode takes a node that runs no longer, and what was left on it, out of the API. What is not there is no error.
func (l *Nodes) forgetNode(ctx context.Context, name string) error {
	if err := l.API.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %s: %w", name, err)
	}
	// Pods of DaemonSets come after the node: as long as that is there, they are made anew.
	pods, err := podsOn(ctx, l.API.Client, name)
	if err != nil {
		return err
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for _, p := range pods {
		if err := l.API.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, now); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	err = l.API.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the lease of node %s: %w", name, err)
	}
	return nil
}
