package distribution

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestKey: another version of a package makes another layer, the same ones the same.
func TestKey(t *testing.T) {
	m := newMachine(t, false)
	keyNow := func() string {
		t.Helper()
		s, err := Select(t.Context(), m.root, Whole)
		m.check(err)
		return s.Key()
	}
	first := keyNow()
	if again := keyNow(); again != first {
		t.Errorf("the same packages: %s and %s", first, again)
	}
	m.write("/var/lib/dpkg/status", strings.Replace(m.status.String(), "Version: 1\n", "Version: 2\n", 1))
	if other := keyNow(); other == first {
		t.Errorf("other packages: %s again", other)
	}
}

// TestGivenUp: an end of the context ends the making.
func TestGivenUp(t *testing.T) {
	kerneltest.NeedRoot(t)
	m := newMachine(t, false)
	files := map[string]string{}
	for n := range 400 {
		files[fmt.Sprintf("/usr/share/less/%d", n)] = strings.Repeat(fmt.Sprint(n), 20000)
	}
	m.pack("less", files, "")
	s, err := Select(t.Context(), m.root, Whole)
	m.check(err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Assemble(ctx, t.TempDir()+"/layer"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
