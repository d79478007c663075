package nodeimage

import (
	"maps"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestChoose: a library or a program that no package has is an error and no image that does not run; so are programs for another processor
// and links in circles. What is chosen has no more than it needs.
func TestChoose(t *testing.T) {
	kerneltest.NeedRoot(t)
	all, err := machine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := Choose(all, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	if len(chosen) > len(all)/2 {
		t.Errorf("%d files of %d", len(chosen), len(all))
	}
	nft := chosen["usr/sbin/nft"].Data
	for name, test := range map[string]struct {
		change func(Tree)
		want   string
	}{
		"no program":   {func(t Tree) { delete(t, "usr/sbin/nft") }, "no package has the program nft"},
		"no library":   {func(t Tree) { drop(t, "libnftables.so.1") }, "/usr/sbin/nft needs a library: no package has libnftables.so.1"},
		"of a library": {func(t Tree) { drop(t, "libjansson.so.4") }, "no package has libjansson.so.4"},
		"no loader":    {func(t Tree) { drop(t, "ld-linux*") }, "what loads /usr/"},
		"no libc":      {func(t Tree) { drop(t, "libc.so.6") }, "0 files are called libc.so.6"},
		"a circle": {func(t Tree) {
			t["usr/sbin/nft"], t["usr/sbin/n"] = File{Link: "n"}, File{Link: "nft"}
		}, "is a link in a circle"},
		"not to its end": {func(t Tree) { t["usr/sbin/nft"] = File{Data: nft[:100]} }, "/usr/sbin/nft: "},
	} {
		changed := maps.Clone(all)
		test.change(changed)
		_, err := Choose(changed, runtime.GOARCH)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	for arch := range machines {
		_, err := Choose(all, arch)
		if refused := err != nil && strings.Contains(err.Error(), "is a program for"); refused != (arch != runtime.GOARCH) {
			t.Errorf("for %s: %v", arch, err)
		}
	}
	_, err = Choose(all, "riscv64")
	if err == nil || !strings.Contains(err.Error(), "architecture riscv64: an image is made for amd64, arm64") {
		t.Error(err)
	}
}

// drop removes the files of a name, wherever they are.
func drop(t Tree, pattern string) {
	maps.DeleteFunc(t, func(name string, _ File) bool {
		match, _ := filepath.Match(pattern, filepath.Base(name))
		return match
	})
}
