package filelock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func open(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestTake(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	one, two := open(t, name), open(t, name)
	if err := Try(one); err != nil {
		t.Fatal(err)
	}
	if err := Try(two); !errors.Is(err, ErrHeld) {
		t.Errorf("while another has it: %v", err)
	}
	why := errors.New("no patience")
	ctx, cancel := context.WithCancelCause(t.Context())
	waited := 0
	if err := Take(ctx, two, func() { waited++; cancel(why) }); !errors.Is(err, why) || waited != 1 {
		t.Errorf("%v, told %d times", err, waited)
	}
	if err := Take(t.Context(), two, func() { one.Close() }); err != nil {
		t.Error(err)
	}
}
