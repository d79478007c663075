package sudouser

import (
	"os/user"
	"path/filepath"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestCacheDir: root behind sudo has its own cache, also with the environment of the user who called it.
func TestCacheDir(t *testing.T) {
	kerneltest.NeedRoot(t)
	root, err := user.LookupId("0")
	if err != nil {
		t.Fatal(err)
	}
	caller, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, sudo, home, cache, want string
	}{
		{"root", "", "/x", "", "/x/.cache"},
		{"root with a cache", "", "/x", "/y", "/y"},
		{"sudo", caller.Uid, root.HomeDir, "", filepath.Join(root.HomeDir, ".cache")},
		{"sudo -E", caller.Uid, caller.HomeDir, "", filepath.Join(root.HomeDir, ".cache")},
		{"sudo -E with the user's cache", caller.Uid, caller.HomeDir, caller.HomeDir + "/cache", filepath.Join(root.HomeDir, ".cache")},
		{"sudo with another cache", caller.Uid, caller.HomeDir, "/big/cache", "/big/cache"},
		{"sudo by root", "0", root.HomeDir, root.HomeDir + "/cache", root.HomeDir + "/cache"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("SUDO_UID", tt.sudo)
			t.Setenv("SUDO_GID", "")
			t.Setenv("HOME", tt.home)
			t.Setenv("XDG_CACHE_HOME", tt.cache)
			if got, err := CacheDir(); err != nil || got != tt.want {
				t.Errorf("got %s, %v; want %s", got, err, tt.want)
			}
		})
	}
}
