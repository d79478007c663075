package layout

import (
	"errors"
	"os"
	"testing"
)

func TestClaim(t *testing.T) {
	d := Dir(t.TempDir())
	if pid := d.Process(); pid != 0 {
		t.Errorf("process %d before any", pid)
	}
	if err := d.Claim(); err != nil {
		t.Fatal(err)
	}
	if pid := d.Process(); pid != os.Getpid() {
		t.Errorf("process %d, want %d", pid, os.Getpid())
	}
	if err := d.Claim(); !errors.Is(err, errRunning) {
		t.Errorf("a second claim: %v", err)
	}
	// A pid file without its lock is a dead process's, whoever has its number now.
	stale := Dir(t.TempDir())
	if err := os.WriteFile(stale.LockFile(), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid := stale.Process(); pid != 0 {
		t.Errorf("a stale pid file gives %d", pid)
	}
}
