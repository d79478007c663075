package verify

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Shrink takes away what a disagreement does not need: packets, hosts with their wires, files and lines, for as long as the world still
// fails as it did. It ends when nothing can be taken away, or when ctx ends, and returns the smallest world with its failure.
func Shrink(ctx context.Context, dir string, w *World, f Failure) (*World, Failure) {
	s := &shrinker{ctx: ctx, dir: dir, best: w.Clone(), failure: f}
	if f.Packet >= 0 {
		s.best.Packets = s.best.Packets[:f.Packet+1]
	}
	for changed := true; changed && ctx.Err() == nil; {
		changed = s.lines(func(w *World) *[]string { return &w.Packets })
		changed = s.hosts() || changed
		for _, h := range slices.Clone(s.best.Hosts) {
			for _, file := range files {
				changed = s.lines(func(w *World) *[]string { return w.Host(h.Name).lines(file) }) || changed
			}
		}
	}
	return s.best, s.failure
}

type shrinker struct {
	ctx     context.Context
	dir     string
	best    *World
	failure Failure
}

// fails reports whether a smaller world still fails in the same way, and keeps it then.
func (s *shrinker) fails(w *World) bool {
	if s.ctx.Err() != nil || len(w.Packets) == 0 {
		return false
	}
	r, err := Run(s.ctx, s.dir, w)
	if err != nil {
		return false
	}
	for _, f := range r.Failures {
		if (f.Packet < 0 || f.Packet == len(w.Packets)-1) && f.alike(&s.failure) {
			s.best, s.failure = w, f
			return true
		}
	}
	return false
}

// lines takes lines away: all, halves, quarters, …
func (s *shrinker) lines(of func(*World) *[]string) bool {
	changed := false
	for size := len(*of(s.best)); size > 0; size /= 2 {
		for from := 0; ; {
			w := s.best.Clone()
			list := of(w)
			if from >= len(*list) {
				break
			}
			*list = slices.Delete(clone(*list), from, min(from+size, len(*list)))
			if s.fails(w) {
				changed = true
			} else {
				from += size
			}
		}
	}
	return changed
}

// hosts takes hosts away, each with its wires and packets.
func (s *shrinker) hosts() bool {
	changed := false
	for i := len(s.best.Hosts) - 1; i >= 0; i-- {
		w := s.best.Clone()
		name := w.Hosts[i].Name
		w.Hosts = slices.Delete(w.Hosts, i, i+1)
		// A wire that goes leaves its place to a blank one, so that the others keep their link-layer addresses.
		for n, line := range w.Wires {
			if e, err := wireEnds(line); err == nil && (e[0] == name || e[2] == name) {
				w.Wires[n] = NoWire
			}
		}
		w.Packets = slices.DeleteFunc(w.Packets, func(p string) bool { return strings.HasPrefix(p, name+" ") })
		changed = s.fails(w) || changed
	}
	return changed
}

// Store writes a world below dir, with what was predicted and what was observed.
func Store(dir, name string, w *World, f Failure) (string, error) {
	w = w.Clone()
	const most = 60 // lines: packets that go round make many
	predicted := strings.Split(f.Walk, "\n")
	if more := len(predicted) - most; more > 0 {
		predicted = append(predicted[:most:most], fmt.Sprintf("and %d lines more", more))
	}
	w.Comment = fmt.Sprintf("%s: packet %d, %s: %s\n%s\nPredicted:\n%s\n", name, f.Packet, f.Line, f.Kind, f.Text,
		strings.Join(predicted, "\n"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name+".txtar")
	return path, os.WriteFile(path, w.Text(), 0o644)
}

// ShrinkFor shrinks for at most a time.
func ShrinkFor(ctx context.Context, d time.Duration, dir string, w *World, f Failure) (*World, Failure) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return Shrink(ctx, dir, w, f)
}
