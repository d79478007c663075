package lab

import (
	"context"
	"errors"
	"os"
	"slices"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/nodes"
)

// A change of a running lab is written down before it begins (Dir.nextFile), and becomes the lab's cluster.yaml when it is done. A lab
// process that finds one half done does the rest when it starts: the network, hosts that are gone, and nodes that were about to leave. What
// joins is made with everything else.

// changeFault is what a change that failed is in the status.
const changeFault = "the last change of the cluster was not done to its end (made again, it does the rest)"

// change brings the running lab to another cluster.yaml, nothing of which needs a new cluster; say hears what is done, first that the
// change is possible. What it did before an error stays; the same file again does the rest. One call at a time; what starts lives as long
// as ctx.
func (l *lab) change(ctx context.Context, source []byte, d lifecycle.Deadline, say func(lifecycle.Step)) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	l.busy.Store(true)
	defer l.busy.Store(false)
	if !l.isReady.Load() {
		return errNotReady
	}
	to, err := l.Dir.Parse(source)
	if err != nil {
		return err
	}
	from := l.Cluster()
	if err := refused(cluster.Compare(from, to)); err != nil {
		return err
	}
	if err := l.azure.Check(to); err != nil {
		return err
	}
	if err := layout.WriteClusterFile(l.Dir.NextClusterFile(), source); err != nil {
		return err
	}
	c := lifecycle.Change{From: from, To: to, Progress: say, Deadline: d}
	return l.Fault(changeFault, l.carryOut(ctx, source, c, l.graph.Components()...))
}

// carryOut brings components to where a change leads that is written down, and writes down where it led.
func (l *lab) carryOut(ctx context.Context, source []byte, c lifecycle.Change, components ...lifecycle.Component) error {
	err := lifecycle.ChangeEach(ctx, c, components...)
	if err != nil && !errors.As(err, new(lifecycle.PartialError)) {
		return err
	}
	return errors.Join(err, l.settle(source, c))
}

// settle writes down the cluster that the lab has become: what a change asked for, but for the pools and their counts whose nodes could not
// join or leave.
func (l *lab) settle(source []byte, c lifecycle.Change) error {
	source, err := withPools(source, c, l.nodes.Counts())
	if err != nil {
		return err
	}
	is, err := l.Dir.Parse(source)
	if err != nil {
		return err
	}
	if err := layout.WriteClusterFile(l.Dir.NextClusterFile(), source); err != nil {
		return err
	}
	l.SetCluster(is)
	l.azure.Planned = is
	return os.Rename(l.Dir.NextClusterFile(), l.Dir.ClusterFile())
}

// withPools gives the cluster.yaml of a change with the pools that have nodes, and as many of them as there are.
func withPools(source []byte, c lifecycle.Change, counts map[string]int) ([]byte, error) {
	var err error
	for _, p := range c.To.Spec.NodePools {
		switch counts[p.Name] {
		case p.Count:
		case 0:
			source, err = cluster.RemovePool(source, p.Name)
		default:
			source, err = cluster.SetCount(source, p.Name, counts[p.Name])
		}
		if err != nil {
			return nil, err
		}
	}
	for _, p := range c.From.Spec.NodePools {
		if p.Count = counts[p.Name]; p.Count == 0 || slices.Contains(c.To.PoolNames(), p.Name) {
			continue
		}
		if source, err = cluster.AddPool(source, p); err != nil {
			return nil, err
		}
	}
	return source, nil
}

// readCluster reads what the lab is to be: what a change was to make it, or else its cluster.yaml.
func (l *lab) readCluster() error {
	made, err := layout.ReadClusterFile(l.Dir.ClusterFile())
	if err != nil {
		return l.Dir.DamagedError(err)
	}
	is, err := l.Dir.Parse(made)
	if err != nil {
		return l.Dir.DamagedError(err)
	}
	l.SetCluster(is)
	next, err := layout.ReadClusterFile(l.Dir.NextClusterFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var to *cluster.Cluster
	if err == nil {
		to, err = l.Dir.Parse(next)
	}
	if err != nil { // another process changed the file: the lab writes only whole and valid ones
		l.Log.Warn("a change that was cut off is left out", "file", l.Dir.NextClusterFile(), "err", err)
		return os.Remove(l.Dir.NextClusterFile())
	}
	l.SetCluster(to)
	l.cut = lifecycle.PendingChange{From: is, Source: next}
	return nil
}

// resume has the nodes leave that were about to when a change was cut off, and the rules of a service proxy that was about to. A node that
// cannot stays, as when the change were made now.
func (l *lab) resume(ctx context.Context, d lifecycle.Deadline) {
	if l.cut.Source == nil {
		return
	}
	l.changing.Lock()
	defer l.changing.Unlock()
	l.busy.Store(true)
	defer l.busy.Store(false)
	c := lifecycle.Change{From: l.cut.From, To: l.Cluster(), Progress: l.Progress, Deadline: d}
	if err := l.Fault(changeFault, l.carryOut(ctx, l.cut.Source, c, nodes.Agents{Nodes: l.nodes}, l.nodes)); err != nil {
		l.Done("the rest of a change that was cut off: %v", err)
	}
}
