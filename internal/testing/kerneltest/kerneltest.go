// Package kerneltest is for tests that need the real kernel.
package kerneltest

import (
	"net"
	"os"
	"strings"
	"testing"
)

// NeedRoot skips a test that does not run as root; where continuous integration runs it ($CI), it fails.
func NeedRoot(t testing.TB) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("CI") != "":
		t.Fatal("needs root")
	default:
		t.Skip("needs root")
	}
}

// Missing skips a test for which the machine lacks something; where continuous integration runs it ($CI), it fails.
func Missing(t testing.TB, format string, a ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("this machine lacks "+format, a...)
	}
	t.Skipf("this machine lacks "+format, a...)
}

// TracksConnections sends a datagram over the loopback interface of the thread's network namespace, and reports whether the kernel tracked
// it.
func TracksConnections(t testing.TB) bool {
	t.Helper()
	c, err := net.Dial("udp4", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("1")); err != nil {
		t.Fatal(err)
	}
	count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(count)) != "0"
}
