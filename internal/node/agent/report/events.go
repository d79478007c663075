package report

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Timeout limits how long the API server may take for an event, or an answer.
const Timeout = 10 * time.Second

// Events makes events of the API, whose source is the service proxy of a node.
type Events struct {
	Node   string
	Logger Logger
	Sink   EventSink
}

// EventSink sends events to the API; *kube.Watcher implements it.
type EventSink interface {
	Event(ctx context.Context, e corev1.Event) error
}

// Make makes an event in the background.
func (s *Events) Make(ctx context.Context, e corev1.Event) {
	e.Source = corev1.EventSource{Component: "kube-proxy", Host: s.Node}
	InBackground(ctx, s.Logger.Warnf, func(ctx context.Context) error { return s.Sink.Event(ctx, e) })
}

// InBackground sends something to the API within Timeout, and writes a line about a failure.
func InBackground(ctx context.Context, warnf func(format string, args ...any), send func(context.Context) error) {
	go func() {
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		if err := send(ctx); err != nil && ctx.Err() == nil {
			warnf("%v", err)
		}
	}()
}
