package lab

import (
	"context"
	"fmt"

	"packetwalk.dev/internal/pods/cgroup"
)

// bounds is the control groups of the lab's containers: what they may use together, and one without limits of its own. Where the machine
// has none, or they are read-only, containers run without bounds, and status says so.
type bounds struct {
	still
	*core
}

// containersGroup is where containers' groups are, below the lab's.
const containersGroup = "containers"

func (l *bounds) Start(context.Context) error {
	lab, one, err := cgroup.Machine()
	if err != nil {
		return err
	}
	l.runtime.Bounds = one
	l.runtime.Groups, l.unbounded = cgroup.Grow(l.dir.cgroup(""), containersGroup, lab)
	for _, s := range l.unbounded {
		l.done("%s", unboundedText(s))
	}
	return nil
}

func (l *bounds) Report(s *Status) {
	for _, u := range l.unbounded {
		s.Warnings = append(s.Warnings, unboundedText(u))
	}
}

func unboundedText(why string) string {
	return fmt.Sprintf("containers are not kept from using up the machine: %s", why)
}
