package lab

import (
	"context"
	"errors"
	"os"
	"slices"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/layout"
)

// A change of a running lab is written down before it begins (Dir.nextFile), and becomes the lab's cluster.yaml when it is done. A lab
// process that finds one half done does the rest when it starts: the network, hosts that are gone, and nodes that were about to leave. What
// joins is made with everything else.

// changeFault is what a change that failed is in the status.
const changeFault = "the last change of the cluster was not done to its end (made again, it does the rest)"

// change brings the running lab to another cluster.yaml, nothing of which needs a new cluster; say hears what is done, first that the
// change is possible. What it did before an error stays; the same file again does the rest. One call at a time; what starts lives as long
// as ctx.
func (l *lab) change(ctx context.Context, source []byte, d deadline, say func(Step)) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	l.busy.Store(true)
	defer l.busy.Store(false)
	if !l.isReady.Load() {
		return errNotReady
	}
	to, err := l.dir.Parse(source)
	if err != nil {
		return err
	}
	from := l.cluster()
	if err := refused(cluster.Compare(from, to)); err != nil {
		return err
	}
	if err := l.azure.try(to); err != nil {
		return err
	}
	if err := layout.WriteClusterFile(l.dir.NextClusterFile(), source); err != nil {
		return err
	}
	return l.fault(changeFault, l.carryOut(ctx, l.parts, source, change{from, to, say, d}))
}

// carryOut takes parts to where a change leads that is written down, and writes down where it led.
func (l *lab) carryOut(ctx context.Context, ps parts, source []byte, c change) error {
	err := ps.change(ctx, c)
	if err != nil && !errors.As(err, new(unfinished)) {
		return err
	}
	return errors.Join(err, l.settle(source, c))
}

// settle writes down the cluster that the lab has become: what a change asked for, but for the pools and their counts whose nodes could not
// join or leave.
func (l *lab) settle(source []byte, c change) error {
	source, err := withPools(source, c, l.nodes.counts())
	if err != nil {
		return err
	}
	is, err := l.dir.Parse(source)
	if err != nil {
		return err
	}
	if err := layout.WriteClusterFile(l.dir.NextClusterFile(), source); err != nil {
		return err
	}
	l.become(is)
	l.azure.planned = is
	return os.Rename(l.dir.NextClusterFile(), l.dir.ClusterFile())
}

// withPools gives the cluster.yaml of a change with the pools that have nodes, and as many of them as there are.
func withPools(source []byte, c change, counts map[string]int) ([]byte, error) {
	var err error
	for _, p := range c.to.Spec.NodePools {
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
	for _, p := range c.from.Spec.NodePools {
		if p.Count = counts[p.Name]; p.Count == 0 || slices.Contains(c.to.PoolNames(), p.Name) {
			continue
		}
		if source, err = cluster.AddPool(source, p); err != nil {
			return nil, err
		}
	}
	return source, nil
}

// cutOff is a change that was not done to its end.
type cutOff struct {
	from   *cluster.Cluster
	source []byte // of the cluster.yaml that it led to; nil when there was none
}

// readCluster reads what the lab is to be: what a change was to make it, or else its cluster.yaml.
func (l *lab) readCluster() error {
	made, err := layout.ReadClusterFile(l.dir.ClusterFile())
	if err != nil {
		return l.dir.DamagedError(err)
	}
	is, err := l.dir.Parse(made)
	if err != nil {
		return l.dir.DamagedError(err)
	}
	l.become(is)
	next, err := layout.ReadClusterFile(l.dir.NextClusterFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var to *cluster.Cluster
	if err == nil {
		to, err = l.dir.Parse(next)
	}
	if err != nil { // somebody else's doing: it is written whole, and of what can be done
		l.log.Warn("a change that was cut off is left out", "file", l.dir.NextClusterFile(), "err", err)
		return os.Remove(l.dir.NextClusterFile())
	}
	l.become(to)
	l.cut = cutOff{is, next}
	return nil
}

// resume has the nodes leave that were about to when a change was cut off, and the rules of a service proxy that was about to. A node that
// cannot stays, as when the change were made now.
func (l *lab) resume(ctx context.Context, d deadline) {
	if l.cut.source == nil {
		return
	}
	l.changing.Lock()
	defer l.changing.Unlock()
	l.busy.Store(true)
	defer l.busy.Store(false)
	c := change{l.cut.from, l.cluster(), l.say, d}
	rest := parts{{part: agents{nodes: l.nodes}}, {part: l.nodes}}
	if err := l.fault(changeFault, l.carryOut(ctx, rest, l.cut.source, c)); err != nil {
		l.done("the rest of a change that was cut off: %v", err)
	}
}
