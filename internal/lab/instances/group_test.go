package instances

import (
	"os"
	"testing"
)

// TestRemovalGoesOn: a group whose removal was begun by a process that died does not run again.
func TestRemovalGoesOn(t *testing.T) {
	s, p := testGroups(t, 10)
	g := s.newGroup(testSpec("g", "1"))
	if _, err := g.allocate(); err != nil {
		t.Fatal(err)
	}
	g.change(func() { g.ending = true })
	next, err := Open(t.Context(), s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(g.dir); len(next.groups) != 0 || !os.IsNotExist(err) || len(p.nics()) != 0 {
		t.Errorf("groups %v, NICs %v, directory: %v", next.groups, p.nics(), err)
	}
}
