package sysctl

import (
	"errors"
	"io/fs"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestEnsure: what has its value is not written, and settings that are missing or refuse a value are named.
func TestEnsure(t *testing.T) {
	kerneltest.NeedRoot(t)
	runtime.LockOSThread() // and the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, value, old, message string }{
		{"net/ipv4/conf/lo/proxy_arp", "1", "0", ""},
		{"net/ipv4/conf/lo/proxy_arp", "1", "", ""},
		{"net/ipv4/conf/lo/proxy_arp", "x", "", "set sysctl to x: write /proc/sys/net/ipv4/conf/lo/proxy_arp: invalid argument"},
		{"net/ipv4/conf/none/proxy_arp", "1", "", "read sysctl: open /proc/sys/net/ipv4/conf/none/proxy_arp: no such file or directory"},
	} {
		old, err := Ensure(c.name, c.value)
		var message string
		if err != nil {
			message = err.Error()
		}
		if old != c.old || message != c.message {
			t.Errorf("%s=%s: %q, %v", c.name, c.value, old, err)
		}
	}
	if value, err := ReadInt("net/ipv4/conf/lo/proxy_arp"); err != nil || value != 1 {
		t.Errorf("%d, %v", value, err)
	}
	if _, err := ReadInt("kernel/ostype"); err == nil {
		t.Error("a word was read as a number")
	}
	if _, err := Read("net/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
