package images

import (
	"strings"
	"testing"
)

// TestStoreLimit: all images together take no more than the limit, whichever way they come. The error names it and the remedy, nothing is
// left, and what is stored already may come again.
func TestStoreLimit(t *testing.T) {
	first, second := imageOf(t, nil, random(t, 60_000)), imageOf(t, nil, random(t, 61_000))
	load := func(s *Store) error {
		_, err := s.Load(t.Context(), saveDocker(t, second, "b:1"))
		return err
	}
	fetch := func(s *Store) error {
		_, err := s.Fetch(t.Context(), "b:1", registryImage{second})
		return err
	}
	for _, tt := range []struct {
		name string
		add  func(*Store) error
	}{{"load", load}, {"fetch", fetch}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t)
			s.most.store = 100_000
			for range 2 {
				if _, err := s.Fetch(t.Context(), "a:1", registryImage{first}); err != nil {
					t.Fatal(err)
				}
			}
			err := tt.add(s)
			if err == nil || !strings.Contains(err.Error(), "images take at most 100000 bytes") || !strings.Contains(err.Error(), "packetwalk image rm") {
				t.Fatalf("%v", err)
			}
			if left := leftovers(t, s); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if err := s.Remove(t.Context(), "a:1"); err != nil {
				t.Fatal(err)
			}
			if err := tt.add(s); err != nil {
				t.Errorf("with room for it: %v", err)
			}
		})
	}
}

// TestStoreSpare: images leave a part of the disk free.
func TestStoreSpare(t *testing.T) {
	s := newStore(t)
	s.most.store = 1 << 60
	if err := s.checkRoom(1 << 59); err == nil || !strings.Contains(err.Error(), "of its disk free") {
		t.Errorf("%v", err)
	}
	if err := s.checkRoom(0); err != nil {
		t.Errorf("nothing more: %v", err)
	}
}
