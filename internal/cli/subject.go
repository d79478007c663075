package cli

import (
	"context"
	"errors"
	"io/fs"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/session"
	"packetwalk.dev/internal/webui"
)

// subject answers a server's questions as the command line does.
type subject struct {
	walk    walkOptions
	streams Streams
	file    *session.Session // where it was opened before; else each question opens the lab, file or cluster
}

// ask walks. use gets the answer while the states are open.
func (p *subject) ask(ctx context.Context, o walkOptions, use func(*session.Session, *walkAnswer) error) error {
	from, to, proto, err := o.check(p.streams)
	if err != nil {
		return badInput{err}
	}
	opened, done, err := p.open(ctx, &o, &from, &to)
	if err != nil {
		return err
	}
	defer done()
	a, err := o.answer(ctx, p.streams, opened, from, to, proto)
	if err != nil {
		return err
	}
	return use(opened, a)
}

// open returns an open session and what closes it.
func (p *subject) open(ctx context.Context, o *walkOptions, from, to *endpoint.End) (*session.Session, func(), error) {
	if p.file != nil {
		return p.file, func() {}, nil
	}
	opened, err := o.open(ctx, p.streams, from, to)
	if err != nil {
		return nil, nil, err
	}
	if err := o.azure.extend(ctx, p.streams, opened); err != nil {
		_ = opened.Close(context.WithoutCancel(ctx))
		return nil, nil, err
	}
	return opened, func() { _ = closeSession(context.WithoutCancel(ctx), p.streams, opened, nil) }, nil
}

// openNetwork opens what is shown, without a walk in view.
func (p *subject) openNetwork(ctx context.Context, o *walkOptions) (*session.Session, func(), error) {
	if o.plugin == nil {
		return p.open(ctx, o, &endpoint.End{}, &endpoint.End{})
	}
	opened, _, err := o.plugin.open(ctx, false)
	if err != nil {
		return nil, nil, err
	}
	return opened, func() { _ = closeSession(context.WithoutCancel(ctx), p.streams, opened, nil) }, nil
}

// readMachine reads the state of a machine. On a cluster's node it does so only with start.
func (p *subject) readMachine(ctx context.Context, id string, start bool) (*webui.Machine, error) {
	o := p.walk
	var opened *session.Session
	var done func()
	var err error
	if o.plugin != nil && start {
		o.plugin.pods.Most = o.most
		if opened, _, err = o.plugin.open(ctx, true); err == nil {
			done = func() { _ = closeSession(context.WithoutCancel(ctx), p.streams, opened, nil) }
		}
	} else {
		opened, done, err = p.openNetwork(ctx, &o)
	}
	if err != nil {
		return nil, err
	}
	defer done()
	if start {
		opened.Read(ctx, []string{id})
	}
	m := &webui.Machine{Objects: opened.Source().Objects(), Owners: opened.Owners([]string{id})}
	host, err := opened.Source().Host(id)
	_, unread := errors.AsType[*snapshot.UnreadError](err)
	switch {
	case err == nil:
		m.Host = host
	case errors.Is(err, fs.ErrNotExist) && !unread: // the box is no machine
	default:
		m.Unread, m.Readable = termsafe.Text(err.Error()), unread && !start
	}
	return m, nil
}
