package dump

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestUnreadSockets: a process whose files may not be read may have any socket open.
func TestUnreadSockets(t *testing.T) {
	if !kerneltest.WithoutRights(t) {
		return
	}
	if _, err := socketOwners(); !errors.Is(err, unix.EACCES) {
		t.Errorf("error %v, want EACCES", err)
	}
}

// TestUnreadSysctl: a setting that may not be read is not one that the kernel does not have.
func TestUnreadSysctl(t *testing.T) {
	ns, _ := netnstest.Pair(t)
	if text, err := sysctls(ns, []string{"net/ipv4/route/flush"}); !errors.Is(err, unix.EACCES) {
		t.Errorf("%q, error %v, want EACCES", text, err)
	}
	if text, err := sysctls(ns, []string{"net/ipv4/conf/*/gone", "net/gone/*/x"}); err != nil || len(text) > 0 {
		t.Errorf("%q, error %v", text, err)
	}
}
