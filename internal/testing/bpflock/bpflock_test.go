package bpflock

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestLock: while a test has programs loaded none walks, and no walk overtakes a test that waits to load them.
func TestLock(t *testing.T) {
	kerneltest.NeedRoot(t)
	walking, err := Walk()
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan string, 2)
	go func() {
		unlock, err := lock(exclusive)
		if err != nil {
			t.Error(err)
			return
		}
		events <- "loaded"
		unlock()
	}()
	eventually.Succeeds(t, 10*time.Second, func() error { // until the gate is held
		file, err := lockFile(gateFile, shared|syscall.LOCK_NB)
		if err == nil {
			file.Close()
			return errors.New("the gate is open")
		}
		return nil
	})
	go func() {
		unlock, err := Walk()
		if err != nil {
			t.Error(err)
			return
		}
		events <- "walked"
		unlock()
	}()
	select {
	case got := <-events:
		t.Errorf("%s while another test walks", got)
	case <-time.After(50 * time.Millisecond):
	}
	walking()
	if first, second := <-events, <-events; first != "loaded" || second != "walked" {
		t.Errorf("%s before %s", first, second)
	}
}
