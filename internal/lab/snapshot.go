package lab

import (
	"context"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/apiobjects"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/lab/layout"
)

// Snapshot gives the states of the hosts of a running lab, by the names that snapshot.Host has. A host is dumped when it is asked for, and
// the Kubernetes objects are fetched when they are. Pods that come later are not among its hosts.
func Snapshot(ctx context.Context, d layout.Dir) (*capture.Lazy, error) {
	o, dumper, err := origin(ctx, d)
	if err != nil {
		return nil, err
	}
	return dumper.Source(ctx, o), nil
}

// Origin gives the hosts of a running lab as what their tools print.
func Origin(ctx context.Context, d layout.Dir) (capture.Origin, error) {
	o, _, err := origin(ctx, d)
	return o, err
}

func origin(ctx context.Context, d layout.Dir) (capture.Origin, *dump.Dumper, error) {
	paths, err := d.Namespaces()
	if err != nil {
		return capture.Origin{}, nil, err
	}
	dumper := &dump.Dumper{Hosts: paths, Spare: d.Tools()}
	o := dumper.Origin(ctx)
	o.Lists = func() (map[string][]byte, error) { return apiobjects.Fetch(ctx, d.Kubeconfig()) }
	return o, dumper, nil
}
