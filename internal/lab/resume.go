package lab

import (
	"context"
	"errors"
	"os"
	"slices"

	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/pods/app"
)

// A change of a running lab is written down before it begins (Dir.nextFile), and becomes the lab's cluster.yaml when it is done. A lab process
// that finds one half done does the rest when it starts: the network, hosts that are gone, and nodes that were about to leave. What joins is
// made with everything else.

// placement is where the machines of the lab have their addresses, by the fabric's file.
func (d Dir) placement() (cluster.Placement, error) {
	n, err := fabric.ReadNetwork(d.fabricState())
	return placementOf(n), err
}

// Parse reads a cluster.yaml for the lab as it is, or one that is not there yet. A file that is wrong gives [cluster.Errors].
func (d Dir) Parse(source []byte) (*cluster.Cluster, error) {
	placed, err := d.placement()
	if err != nil {
		return nil, err
	}
	c, errs := cluster.ParseFor(placed, source, app.Names()...)
	if len(errs) > 0 {
		return nil, errs
	}
	return c, nil
}

// cutOff is a change that was not done to its end.
type cutOff struct {
	from   *cluster.Cluster
	source []byte // of the cluster.yaml that it led to; nil when there was none
}

// readCluster reads what the lab is to be: what a change was to make it, or else its cluster.yaml.
func (l *lab) readCluster() (cutOff, error) {
	made, err := readSource(l.dir.ClusterFile())
	if err != nil {
		return cutOff{}, err
	}
	if l.cluster, err = l.dir.Parse(made); err != nil {
		return cutOff{}, err
	}
	l.planned = l.cluster
	next, err := readSource(l.dir.nextFile())
	if errors.Is(err, os.ErrNotExist) {
		return cutOff{}, nil
	}
	cut := cutOff{l.cluster, next}
	if err == nil {
		l.cluster, err = l.dir.Parse(next)
	}
	if err != nil { // somebody else's doing: it is written whole, and of what can be done
		l.log.Warn("a change that was cut off is left out", "file", l.dir.nextFile(), "err", err)
		l.cluster = cut.from
		return cutOff{}, os.Remove(l.dir.nextFile())
	}
	return cut, nil
}

// resumeNetwork brings the network to where the change led, and takes away hosts that are in it no longer. Where it cannot lead there, nothing of
// the change was begun, and it is dropped.
func (l *lab) resumeNetwork(ctx context.Context, cut *cutOff) error {
	if cut.source == nil {
		return nil
	}
	if err := l.fabric.Update(func(n *vnet.Network) error { return revise(n, cut.from, l.cluster) }); err != nil {
		l.log.Warn("a change that was cut off is left out", "file", l.dir.nextFile(), "err", err)
		l.cluster, cut.source = cut.from, nil
		return os.Remove(l.dir.nextFile())
	}
	l.log.Info("a change was cut off; the rest of it is done")
	l.planned = l.cluster
	want := hostsOf(l.cluster)
	for _, h := range hostsOf(cut.from) {
		if slices.ContainsFunc(want, h.sameMachine) {
			continue
		}
		ns, err := kernel.OpenNamespace(l.dir.NetNS(h.Name))
		if err != nil {
			continue // it is gone already
		}
		if err := l.discardHost(ctx, &host{Host: h, ns: ns}); err != nil {
			return err
		}
	}
	return nil
}

// resumeNodes has the nodes leave that were about to. One that cannot stays, as when the change were made now.
func (l *lab) resumeNodes(ctx context.Context, cut cutOff) {
	if cut.source == nil {
		return
	}
	l.changing.Lock()
	defer l.changing.Unlock()
	l.busy.Store(true)
	defer l.busy.Store(false)
	if err := l.tried(taskChange, errors.Join(l.reviseNodes(ctx, l.cluster, l.say), l.settle(cut.source))); err != nil {
		l.log.Error("the rest of a change that was cut off", "err", err)
		l.done("the rest of a change that was cut off: %v", err)
	}
}

// settle writes down the cluster that the lab has become: what a change asked for, but for the counts of pools whose nodes could not join or leave.
func (l *lab) settle(source []byte) error {
	counts := map[string]int{}
	l.mu.Lock()
	for _, n := range l.nodes {
		counts[n.Pool]++
	}
	l.mu.Unlock()
	asked := l.description().Cluster
	for _, p := range asked.Spec.NodePools {
		if counts[p.Name] == p.Count {
			continue
		}
		var err error
		if source, err = cluster.SetCount(source, p.Name, counts[p.Name]); err != nil {
			return err
		}
	}
	is, err := l.dir.Parse(source)
	if err != nil {
		return err
	}
	if err := writeCluster(l.dir.nextFile(), source); err != nil {
		return err
	}
	l.mu.Lock()
	l.cluster, l.planned = is, is
	l.mu.Unlock()
	return os.Rename(l.dir.nextFile(), l.dir.ClusterFile())
}
