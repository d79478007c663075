package iptables

// slab makes values in pieces of many, which are fewer and larger than one by one. The zero value is empty.
type slab[T any] struct {
	room []T
	next int // size of the next piece
}

const maxSlab = 1024

// take gives room for n values, nil for none. Appending to it copies.
func (s *slab[T]) take(n int) []T {
	if n == 0 {
		return nil
	}
	if len(s.room) < n {
		s.next = min(max(2*s.next, n), max(maxSlab, n))
		s.room = make([]T, s.next)
	}
	taken := s.room[:n:n]
	s.room = s.room[n:]
	return taken
}

// add keeps a value.
func (s *slab[T]) add(v T) *T {
	p := &s.take(1)[0]
	*p = v
	return p
}

// keep copies values.
func (s *slab[T]) keep(v []T) []T {
	kept := s.take(len(v))
	copy(kept, v)
	return kept
}
