package cniinstall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"packetwalk.dev/internal/base/pause"
)

const (
	lookTime   = 10 * time.Second // between two looks at what is installed
	deleteTime = 10 * time.Second // for the answer whether it is to go
)

// podRange is what stands in a configuration for the range of the node's pods; other installers of CNI have the word, too.
const podRange = "usePodCidr"

// WithPodRange gives a configuration the range of the node's pods where it has the value "usePodCidr"; one that has not needs none.
func WithPodRange(conflist []byte, find func() (netip.Prefix, error)) ([]byte, error) {
	var list any
	d := json.NewDecoder(bytes.NewReader(conflist))
	d.UseNumber()
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("read the network configuration list: %w", err)
	}
	found := false
	if replace(list, podRange, func() { found = true }); !found {
		return conflist, nil
	}
	r, err := find()
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(replace(list, r.String(), func() {}), "", "  ")
}

// replace is a JSON value with another text for podRange.
func replace(v any, with string, found func()) any {
	switch v := v.(type) {
	case map[string]any:
		for key, one := range v {
			v[key] = replace(one, with, found)
		}
	case []any:
		for i, one := range v {
			v[i] = replace(one, with, found)
		}
	case string:
		if v == podRange {
			found()
			return with
		}
	}
	return v
}

// Keep installs, and looks again and again whether all is there, by options that may change each time, until ctx ends. Then everything
// stays, since pods start and end while another pod takes this one's place. With deleted it asks whether the DaemonSet has been deleted,
// and if so, for certain, removes everything.
func Keep(ctx context.Context, options func(context.Context) (Options, error), deleted func(context.Context) (bool, error),
	logger *slog.Logger) error {
	var last string
	var o Options
	for again := true; again; again = pause.For(ctx, lookTime) {
		now, err := options(ctx)
		var notes []string
		if err == nil {
			o = now
			notes, err = Install(o)
		}
		said, level := "installed "+o.Name, slog.LevelInfo
		if err != nil {
			said, level = "not installed: "+err.Error(), slog.LevelWarn
		}
		if said = strings.Join(append([]string{said}, notes...), "; "); said != last && ctx.Err() == nil {
			logger.Log(ctx, level, said)
			last = said
		}
	}
	if o.Name == "" {
		return nil // never installed anything
	}
	if deleted == nil {
		logger.Info("stopped; plugin and configuration stay on the node")
		return nil
	}
	ask, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), deleteTime, errors.New("no answer"))
	defer cancel()
	gone, err := deleted(ask)
	if err != nil {
		logger.Warn("plugin and configuration stay on the node: " + err.Error())
		return nil
	}
	if !gone {
		logger.Info("stopped; plugin and configuration stay on the node")
		return nil
	}
	notes, err := Remove(o.Dirs, o.Owner)
	logger.Info(strings.Join(append([]string{"the DaemonSet has been deleted: removed what was installed"}, notes...), "; "))
	return err
}
