package redact

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/attribution"
)

// NewKey makes a key for one redaction. A reader without the key cannot tell which address or name stood where. The key is not kept.
func NewKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails (crypto/rand)
	return key
}

// atOnce is how many hosts are in memory.
const atOnce = 8

// Capture replaces addresses and names all over a capture, the same ones by the same, so that packets walk through it as before: see
// docs/capture.md for what is replaced and what stays. It reads every host once, to learn what there is; the head and the origin that it
// gives are the redacted ones, whose hosts are read, and replaced, as they are asked for. A text that cannot be read is left out, and its
// Output says so. The book tells which parts of chains' names are their writers' own. The originals are those of what has been read.
func Capture(h capture.Head, o capture.Origin, book *attribution.Book, key []byte) (capture.Head, capture.Origin, *Originals, error) {
	r, err := learn(o, book, key)
	if err != nil {
		return h, o, nil, err
	}
	h.Redacted = true
	h, redacted, err := r.capture(h, o)
	return h, redacted, r.names.originals, err
}

// capture replaces what tells names in the head of a capture and its hosts' names. The hosts themselves are replaced as they are fetched.
func (r *redactor) capture(h capture.Head, o capture.Origin) (capture.Head, capture.Origin, error) {
	h.Notes = slices.Clone(h.Notes)
	for i, note := range h.Notes {
		h.Notes[i] = r.problem(note)
	}
	before := map[string]string{}
	changed := capture.Origin{Hosts: map[string]capture.NetNS{}, Tools: o.Tools}
	if o.Lists != nil {
		changed.Lists = func() (map[string][]byte, error) { return r.lists(o.Lists()) }
	}
	for name, ns := range o.Hosts {
		host := r.names.host(name)
		if before[host] != "" {
			return h, o, errors.New("two hosts would have the same name; run it again")
		}
		before[host], changed.Hosts[host] = name, capture.NetNS{Machine: r.names.of("node", ns.Machine), Inode: ns.Inode}
	}
	changed.Fetch = func(name string) (*capture.Raw, error) {
		raw, err := o.Fetch(before[name])
		if err != nil {
			return nil, fmt.Errorf("host %q: %s", name, r.problem(err.Error()))
		}
		host := r.host(raw)
		return host, r.names.back.problem()
	}
	return h, changed, nil
}

// learn finds out what must be known before anything is replaced: the links there are, and the ranges of addresses and names that rules
// speak of.
func learn(o capture.Origin, book *attribution.Book, key []byte) (*redactor, error) {
	r := &redactor{addresses: newAddressMap(key), names: newNameMap(book, key), learning: true}
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(atOnce)
	for name := range o.Hosts {
		g.Go(func() error {
			raw, err := o.Fetch(name)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			r.host(raw)
			return nil
		})
	}
	err := g.Wait()
	r.learning = false
	r.names.originals.of = r.addresses
	r.names.originals.forget()
	return r, err
}

// lists replaces the Kubernetes objects', as far as they could be had.
func (r *redactor) lists(lists map[string][]byte, problem error) (map[string][]byte, error) {
	out := map[string][]byte{}
	if problem != nil {
		problem = errors.New(r.problem(problem.Error()))
	}
	labels := selectorKeys(lists[capture.NetworkPoliciesFile])
	for _, l := range capture.ObjectLists {
		data, ok := lists[l.File]
		if !ok {
			continue
		}
		objects, err := l.Trim(data)
		for i := 0; i < len(objects) && err == nil; i++ {
			var o map[string]any
			if err = decodeNumbers(objects[i], &o); err == nil {
				r.object(l.File, o, labels)
				objects[i], err = json.Marshal(o)
			}
		}
		if err != nil {
			problem = errors.Join(problem, errors.New(r.problem(err.Error())))
			continue
		}
		out[l.File] = capture.List(objects)
	}
	if lost := r.names.back.problem(); lost != nil {
		return nil, lost
	}
	return out, problem
}
