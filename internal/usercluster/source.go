package usercluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/usercluster/remote"
)

// Source gives the states of hosts on nodes whose pods run; of others it returns a *snapshot.UnreadError. Read starts pods.
type Source struct {
	*capture.Lazy
	view *View
}

// Source returns a source of all hosts.
func (v *View) Source() *Source { return &Source{capture.NewSource(v.Origin()), v} }

// Outline returns the host, where it was read: nothing is read for an outline alone.
func (s *Source) Outline(name string) (*snapshot.Host, error) { return s.Host(name) }

// Host implements snapshot.Source.
func (s *Source) Host(name string) (*snapshot.Host, error) {
	node, err := s.view.on[name], error(nil)
	switch {
	case node != "":
		err = s.view.cluster.startError(node)
	case s.view.off[name] != "":
		node = s.view.off[name]
		err = errors.New(s.view.cluster.whyUnread(node))
	}
	if err != nil {
		if name != "node/"+node {
			err = fmt.Errorf("node %s: %w", node, err)
		}
		return nil, &snapshot.UnreadError{Host: name, Err: err}
	}
	h, err := s.Lazy.Host(name)
	if node != "" && err != nil && remote.Told(err) {
		return nil, &snapshot.UnreadError{Host: name, Err: err}
	}
	return h, err
}

// Read starts pods on the nodes of some hosts, side by side. Where there are more than Options.Most allows, those come first whose hosts
// do. It returns false where that was tried for all of them before.
func (s *Source) Read(ctx context.Context, hosts []string) bool {
	c := s.view.cluster
	var nodes []string
	for _, host := range hosts {
		node := s.view.on[host]
		if node != "" && errors.Is(c.startError(node), errNotStarted) && !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	if len(nodes) == 0 {
		return false
	}
	for len(nodes) > 0 && ctx.Err() == nil {
		some := min(len(nodes), c.room())
		if some == 0 {
			c.setError(nodes, fmt.Errorf("--max-nodes %d is reached", c.options.Most))
			break
		}
		var g errgroup.Group
		g.SetLimit(startsAtOnce)
		for _, name := range nodes[:some] {
			g.Go(func() error {
				_, _ = c.Node(ctx, name) // Host returns the error
				return nil
			})
		}
		_ = g.Wait()
		nodes = nodes[some:]
	}
	return true
}
