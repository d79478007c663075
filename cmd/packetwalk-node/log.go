package main

import (
	"context"
	"log/slog"
	"os"

	"k8s.io/klog/v2"
)

// newLogger makes the program's log on standard error. The Kubernetes client writes to it, too.
func newLogger() *slog.Logger {
	handler := slog.NewTextHandler(os.Stderr, nil)
	klog.SetSlogLogger(slog.New(withoutWatches{handler}))
	return slog.New(handler)
}

// withoutWatches drops the lines of the Kubernetes client about each try to watch that failed. What uses the client reports those itself,
// together and once.
type withoutWatches struct{ slog.Handler }

func (w withoutWatches) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "Failed to watch" { // k8s.io/client-go/tools/cache, DefaultWatchErrorHandler
		return nil
	}
	return w.Handler.Handle(ctx, r)
}

func (w withoutWatches) WithAttrs(attrs []slog.Attr) slog.Handler {
	return withoutWatches{w.Handler.WithAttrs(attrs)}
}

func (w withoutWatches) WithGroup(name string) slog.Handler {
	return withoutWatches{w.Handler.WithGroup(name)}
}
