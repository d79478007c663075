package lab

import (
	"context"
	"fmt"
	"slices"

	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/pods/cgroup"
)

// bounds is what the lab's nodes may use together, a node and a pod: control groups, and a disk. Where the machine has none, or they are
// read-only, there are no bounds, and status says so.
type bounds struct {
	*lifecycle.Env
}

func (l *bounds) Start(ctx context.Context) error {
	b, err := cgroup.Machine()
	if err != nil {
		return err
	}
	l.PodProcesses, l.NodeBounds = b.PodProcesses, b.Node
	l.Unbounded = cgroup.Bound(l.Dir.Cgroup(""), b.Lab)
	if err := l.Dir.MakeDisk(ctx); err != nil {
		l.NoDisk = "what they write is not limited: " + status.OneLine(err)
	}
	for _, s := range l.missing() {
		l.Done("%s", unboundedText(s))
	}
	switch was, err := raiseInotify(inotifyInstances); {
	case err != nil: // a few nodes do with what there is
		l.Log.Warn("raise the limit of inotify", "err", err)
	case was > 0:
		l.Log.Info("raised fs.inotify.max_user_instances", "was", was, "is", enoughInstances)
	}
	return nil
}

func (l *bounds) Report(s *status.Status) {
	for _, u := range l.missing() {
		s.Warnings = append(s.Warnings, unboundedText(u))
	}
}

// missing returns the bounds that are not there.
func (l *bounds) missing() []string {
	if l.NoDisk == "" {
		return l.Unbounded
	}
	return append(slices.Clone(l.Unbounded), l.NoDisk)
}

func unboundedText(why string) string {
	return fmt.Sprintf("nodes are not kept from using up the machine: %s", why)
}
