package cniinstall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// Keep installs, and looks again and again whether all is there, by options that may be others each time, until ctx ends. Then it asks
// whether that is the end of all who install here, and takes everything away; if it is not, or is not known, everything stays: pods go on
// to begin and end while another takes this one's place.
func Keep(ctx context.Context, options func(context.Context) (Options, error), deleted func(context.Context) (bool, error),
	log func(format string, args ...any)) error {
	var last string
	var o Options
	for again := true; again; again = pause.For(ctx, lookTime) {
		now, err := options(ctx)
		var notes []string
		if err == nil {
			o = now
			notes, err = Install(o)
		}
		said := "installed " + o.Name
		if err != nil {
			said = "not installed: " + err.Error()
		}
		if said = strings.Join(append([]string{said}, notes...), "; "); said != last && ctx.Err() == nil {
			log("%s", said)
			last = said
		}
	}
	if o.Name == "" {
		return nil // never installed anything
	}
	ask, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), deleteTime, errors.New("no answer"))
	defer cancel()
	gone, err := deleted(ask)
	if err != nil {
		log("everything stays: %v", err)
		return nil
	}
	if !gone {
		log("everything stays, for who comes next")
		return nil
	}
	notes, err := Remove(o.Dirs, o.Owner)
	log("%s", strings.Join(append([]string{"removed what was installed"}, notes...), "; "))
	return err
}
