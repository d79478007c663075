package serviceproxy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/base/sysctl"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestInit: what is set at first needs no rights when the proxy runs.
func TestInit(t *testing.T) {
	kerneltest.NeedRoot(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), "PACKETWALK_TEST_ROLE=init"), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	got, err := cmd.Output()
	if want := "route_localnet 1, close_wait 77"; err != nil || string(got) != want {
		t.Errorf("%q, %v; want %s", got, err, want)
	}
}

func playInit() error {
	if err := Init(options.Options{ServiceProxy: true, Backend: options.BackendIPTables, LocalhostPorts: true, CloseWait: 77 * time.Second},
		slog.Default()); err != nil {
		return err
	}
	localnet, err := sysctl.ReadInt(routeLocalnet)
	wait, failed := sysctl.ReadInt(ctCloseWait)
	fmt.Printf("route_localnet %d, close_wait %d", localnet, wait)
	return errors.Join(err, failed)
}
