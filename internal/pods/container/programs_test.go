package container_test

import (
	"errors"
	"testing"

	"packetwalk.dev/internal/pods/container"
)

// An image whose program is not built in runs the machine's file for it, and without one does not start.
func TestBroughtProgram(t *testing.T) {
	m := newMachine(t)
	spec := m.spec("coredns")
	spec.Args = []string{"as", "coredns"}
	_, err := m.runtime.Start(t.Context(), spec)
	if !errors.Is(err, container.ErrStart) {
		t.Fatalf("without the program: %v", err)
	}
	contains(t, err.Error(), `exec: "/coredns": this runtime brings no such program`)
	m.runtime.Programs = map[string]string{"coredns": "/bin/echo"}
	c := m.start(spec)
	if exit := m.wait(c); exit.Code != 0 {
		t.Errorf("exit %+v", exit)
	}
	contains(t, m.log(c), "as coredns")
}
