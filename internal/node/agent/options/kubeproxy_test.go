package options

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"packetwalk.dev/internal/base/sysctl"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestSupportedFamilies: with iptables there is IPv6 where its programs get at the kernel's table, not where they are all there is.
func TestSupportedFamilies(t *testing.T) {
	if _, err := sysctl.ReadInt("net/ipv6/conf/all/forwarding"); err != nil {
		kerneltest.Missing(t, "IPv6: %v", err)
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for status, want := range map[int]string{0: "[IPv4 IPv6]", 1: "[IPv4]"} {
		for _, name := range []string{"ip6tables-save", "ip6tables-restore"} {
			if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "#!/bin/sh\nexit %d\n", status), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		o := Defaults()
		if got := fmt.Sprintf("%v", o.SupportedFamilies()); got != want {
			t.Errorf("where ip6tables-save ends with %d: %s, want %s", status, got, want)
		}
	}
}
