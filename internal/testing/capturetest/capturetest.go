// Package capturetest holds captures in memory, for tests that look at them or change them.
package capturetest

import (
	"bytes"
	"maps"
	"slices"
	"testing"

	"packetwalk.dev/internal/capture"
)

// Content is all that a capture has.
type Content struct {
	capture.Head
	Hosts []*capture.Raw // sorted by name
	Lists map[string][]byte
}

// Open reads a capture file.
func Open(t testing.TB, path string) *Content {
	t.Helper()
	f, err := capture.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := Of(f)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Complete adds to an old capture's hosts the files that newer captures have, with nothing in them, and returns it.
func (h *Content) Complete() *Content {
	for _, raw := range h.Hosts {
		for _, row := range capture.Dumps {
			if _, there := raw.Outputs[row.File]; row.Later && !there {
				raw.Outputs[row.File] = capture.Output{Data: []byte("[]")}
			}
		}
	}
	return h
}

// Of reads all of an open capture.
func Of(f *capture.File) (*Content, error) {
	h, o := &Content{Head: f.Head}, f.Origin()
	for _, name := range slices.Sorted(maps.Keys(o.Hosts)) {
		raw, err := o.Fetch(name)
		if err != nil {
			return nil, err
		}
		h.Hosts = append(h.Hosts, raw)
	}
	var err error
	h.Lists, err = o.Lists()
	return h, err
}

// Read reads all of a capture's bytes.
func Read(file []byte) (*Content, error) {
	f, err := capture.Read(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return nil, err
	}
	return Of(f)
}

// Origin gives what is held.
func (h *Content) Origin() capture.Origin {
	o := capture.OriginOf(h.Hosts, h.Lists)
	o.Tools = func() map[string]string { return h.Tools }
	return o
}

// Pack makes a capture file of it.
func (h *Content) Pack(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := capture.Take(t.Context(), h.Origin(), &b, h.Head); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
