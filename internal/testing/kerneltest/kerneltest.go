// Package kerneltest is for tests that need the real kernel.
package kerneltest

import (
	"os"
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
