package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/lab/cluster"
)

// placementOf is where a network's machines have their addresses.
func placementOf(n vnet.Network) cluster.Placement {
	p := cluster.Placement{}
	for _, nic := range n.NICs {
		var addrs []netip.Addr
		for _, c := range nic.IPConfigs {
			addrs = append(addrs, c.Address)
		}
		p[nic.Machine] = addrs
	}
	return p
}

// nodesThere are the cluster's nodes, and after them those that a network still has of its pools: they are to leave, or were about to.
func nodesThere(c *cluster.Cluster, n vnet.Network) []cluster.Node {
	all := c.Nodes()
	for _, nic := range n.NICs {
		node, ok := c.NodeOf(nic.Machine)
		if ok && !slices.ContainsFunc(all, func(o cluster.Node) bool { return o.Name == node.Name }) {
			all = append(all, node)
		}
	}
	return all
}

// reviseNodes makes the nodes those of a cluster: new ones join, all at once, and then those that are too many leave, one after the other,
// the one with the highest index first. When a node cannot join, all of the new ones are taken away again; one that cannot leave stays.
func (l *lab) reviseNodes(ctx context.Context, to *cluster.Cluster, say func(Step)) error {
	want := to.Nodes()
	if err := l.joinNodes(ctx, want, say); err != nil {
		return err
	}
	l.mu.Lock()
	leaving := slices.DeleteFunc(slices.Clone(l.nodes), func(n *node) bool { return slices.ContainsFunc(want, n.is) })
	l.mu.Unlock()
	slices.SortStableFunc(leaving, func(a, b *node) int { return cmp.Compare(b.Index, a.Index) })
	for _, n := range leaving {
		if err := l.leave(ctx, n, say); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return nil
}

func (n *node) is(spec cluster.Node) bool { return n.Name == spec.Name }

// joinNodes brings up those nodes that are not there. The network has their NICs.
func (l *lab) joinNodes(ctx context.Context, want []cluster.Node, say func(Step)) error {
	var joining []*node
	var g errgroup.Group
	for _, spec := range want {
		if slices.ContainsFunc(l.nodes, func(n *node) bool { return n.is(spec) }) {
			continue
		}
		n, err := l.makeNode(spec)
		if n != nil {
			joining = append(joining, n)
		}
		g.Go(func() error {
			if err == nil {
				err = l.join(ctx, n)
			}
			if err != nil {
				return fmt.Errorf("node %s: %w", spec.Name, err)
			}
			say(Step{Text: fmt.Sprintf("node %s, %s, is Ready", n.Name, n.Address)})
			return nil
		})
	}
	err := g.Wait()
	if err == nil && len(joining) > 0 {
		err = l.startRoutes(ctx)
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
func (l *lab) join(ctx context.Context, n *node) error {
	if err := l.startAgent(n); err != nil {
		return err
	}
	return l.startKubelet(ctx, n)
}

// leave takes a node out of the cluster as AKS does: cordoned, drained, out of the load balancer, and then gone with all it had. One that
// cannot be drained is made schedulable again, and stays.
func (l *lab) leave(ctx context.Context, n *node, say func(Step)) error {
	say(Step{Text: "node " + n.Name + " is cordoned and drained"})
	err := l.cordon(ctx, n.Name, true)
	if err == nil {
		err = drain(ctx, l.client, n.Name, evictPatience)
	}
	if err != nil {
		undo := l.cordon(context.WithoutCancel(ctx), n.Name, false)
		return errors.Join(err, undo)
	}
	if err := l.leaveBalancer(ctx, n); err != nil {
		return err
	}
	if err := l.removeNode(ctx, n); err != nil {
		return err
	}
	say(Step{Text: "node " + n.Name + " is gone"})
	return nil
}

// leaveBalancer takes a node out of the load balancer's pools, and has the service controller leave it out.
func (l *lab) leaveBalancer(ctx context.Context, n *node) error {
	err := l.patchNode(ctx, n.Name, map[string]any{"metadata": map[string]any{"labels": map[string]string{corev1.LabelNodeExcludeBalancers: "true"}}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("take the node out of the load balancer: %w", err)
	}
	return l.fabric.Update(func(net *vnet.Network) error {
		net.LeavePools(n.NIC)
		return nil
	})
}

// removeNode ends what runs on a node and takes away all that there is of it, its NIC with its addresses last: a lab process that is killed
// on the way finds the node by that, and removes the rest. Its log stays, for the next of that name.
func (l *lab) removeNode(ctx context.Context, n *node) error {
	if n.stop != nil {
		n.stop()
	}
	if n.agent != nil {
		if err := n.agent.s.Stop(); err != nil {
			return fmt.Errorf("stop the agent of %s: %w", n.Name, err)
		}
	}
	pods := filepath.Join(l.dir.PodNetNSDir(), n.Name)
	spaces, err := kernel.MountedNamespaces(pods)
	if err != nil {
		return err
	}
	inodes := []uint64{n.ns.Inode()}
	for _, inode := range spaces {
		inodes = append(inodes, inode)
	}
	if err := kernel.KillIn(ctx, inodes...); err != nil {
		return fmt.Errorf("end the processes of %s: %w", n.Name, err)
	}
	if n.stop != nil {
		<-n.done
	}
	if err := l.forgetNode(ctx, n.Name); err != nil {
		return err
	}
	for path := range spaces {
		if err := kernel.RemoveNamespace(path); err != nil {
			return err
		}
	}
	if err := errors.Join(n.ns.Remove(), unmountBelow(l.dir.Node(n.Name)), os.RemoveAll(l.dir.Node(n.Name)), os.RemoveAll(pods)); err != nil {
		return fmt.Errorf("remove %s: %w", n.Name, err)
	}
	if err := l.releaseNode(n); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes = slices.DeleteFunc(l.nodes, func(o *node) bool { return o == n })
	return nil
}

// releaseNode gives back what the network has of a node: its NIC with its addresses, and its route.
func (l *lab) releaseNode(n *node) error {
	table, _, routed := l.cluster.PodRouteTable()
	return l.fabric.Update(func(net *vnet.Network) error {
		net.ReleaseNIC(n.NIC)
		if routed {
			net.DeleteRoute(table, n.Name)
		}
		return nil
	})
}

// forgetNode takes a node that runs no longer, and what was left on it, out of the API. What is not there is no error.
func (l *lab) forgetNode(ctx context.Context, name string) error {
	if err := l.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %s: %w", name, err)
	}
	// Pods of DaemonSets come after the node: as long as that is there, they are made anew.
	pods, err := podsOn(ctx, l.client, name)
	if err != nil {
		return err
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for _, p := range pods {
		if err := l.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, now); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	err = l.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the lease of node %s: %w", name, err)
	}
	return nil
}
