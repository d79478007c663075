package lab

import (
	"context"
	"path/filepath"
	"slices"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/lifecycle"
)

// Each host of a lab has a network namespace, which is mounted at Dir.NetNS. When something else takes that mount away, the namespace lives
// on in the processes of the host and in the lab process, but its path no longer leads to it. "up" mounts it again. A lab process that runs
// has the namespace open; one that starts finds it by the host's processes.

// A namespaceHolder is a component that holds network namespaces open.
type namespaceHolder interface {
	Namespaces() []*netns.Namespace
}

// hostOf returns the name of the host whose namespace it is.
func hostOf(ns *netns.Namespace) string { return filepath.Base(ns.Path()) }

// unmounted returns the namespaces of a lab that is ready whose mounts were lost; none while hosts come and go.
func (l *lab) unmounted() []*netns.Namespace {
	if !l.isReady.Load() || l.busy.Load() {
		return nil
	}
	var lost []*netns.Namespace
	for _, c := range l.graph.Components() {
		if h, ok := c.(namespaceHolder); ok {
			lost = append(lost, h.Namespaces()...)
		}
	}
	return slices.DeleteFunc(lost, func(ns *netns.Namespace) bool { return ns == nil || ns.IsMounted() }) // nil: the fabric is about to stop
}

// repair makes again what is missing of a lab that is ready: mounts of namespaces, and what its components repair. It returns what that
// was, in words.
func (l *lab) repair(ctx context.Context) ([]string, error) {
	l.changing.Lock()
	defer l.changing.Unlock()
	repaired := []string{}
	for _, ns := range l.unmounted() {
		if err := ns.Remount(); err != nil {
			return repaired, err
		}
		repaired = append(repaired, "network namespace of "+hostOf(ns)+" is no longer mounted")
	}
	for _, c := range l.graph.Components() {
		r, ok := c.(lifecycle.Repairer)
		if !ok {
			continue
		}
		texts, err := r.Repair(ctx)
		repaired = append(repaired, texts...)
		if err != nil {
			return repaired, err
		}
	}
	return repaired, nil
}
