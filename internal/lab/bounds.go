package lab

import (
	"context"
	"fmt"
	"slices"

	"packetwalk.dev/internal/pods/cgroup"
)

// bounds is what the lab's containers may use together, one without limits of its own, and a real node: control groups, and a disk. Where
// the machine has none, or they are read-only, containers run without bounds, and status says so.
type bounds struct {
	still
	*core
}

// containersGroup is where containers' groups are, below the lab's.
const containersGroup = "containers"

func (l *bounds) Start(ctx context.Context) error {
	b, err := cgroup.Machine()
	if err != nil {
		return err
	}
	l.runtime.Bounds, l.nodeBounds = b.One, b.Node
	l.runtime.Groups, l.unbounded = cgroup.Grow(l.dir.cgroup(""), containersGroup, b.Lab)
	if err := l.dir.makeDisk(ctx); err != nil {
		l.noDisk = "what they write is not limited: " + oneLine(err)
	}
	for _, s := range l.missing() {
		l.done("%s", unboundedText(s))
	}
	switch was, err := raiseInotify(inotifyInstances); {
	case err != nil: // a few nodes do with what there is
		l.log.Warn("raise the limit of inotify", "err", err)
	case was > 0:
		l.log.Info("raised fs.inotify.max_user_instances", "was", was, "is", enoughInstances)
	}
	return nil
}

func (l *bounds) Report(s *Status) {
	for _, u := range l.missing() {
		s.Warnings = append(s.Warnings, unboundedText(u))
	}
}

// missing are the bounds that are not there.
func (l *bounds) missing() []string {
	if l.noDisk == "" {
		return l.unbounded
	}
	return append(slices.Clone(l.unbounded), l.noDisk)
}

func unboundedText(why string) string {
	return fmt.Sprintf("containers are not kept from using up the machine: %s", why)
}
