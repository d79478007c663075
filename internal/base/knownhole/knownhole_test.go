package knownhole

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
	const runc, containerd = "github.com/opencontainers/runc", "github.com/containerd/containerd/v2"
	for _, tt := range []struct {
		module, version string
		bad             bool
	}{
		{runc, "v1.1.15", true}, // Debian 13's
		{runc, "v1.2.7", true},
		{runc, "v1.2.8", false},
		{runc, "v1.3.2", true},
		{runc, "v1.3.3", false},
		{runc, "v1.4.0-rc.2", true},
		{runc, "v1.4.0-rc.3", false},
		{runc, "v1.5.3", false},
		{containerd, "v2.1.4", true},
		{containerd, "v2.4.2", false},
		{"example.com/other", "v0.0.1", false},
	} {
		t.Run(tt.module+"@"+tt.version, func(t *testing.T) {
			err := Of(tt.module, tt.version)
			if (err != nil) != tt.bad || tt.bad && !strings.Contains(err.Error(), "CVE-") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestOfProgram: the modules are those in the program. One that is no Go program is not taken for one without holes.
func TestOfProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "program")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", file, "./testdata/program").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := OfProgram(file); err != nil {
		t.Error(err)
	}
	defer func(was []hole) { holes = was }(holes)
	holes = []hole{{"golang.org/x/mod", "CVE-X", []string{"v99.0.0"}}}
	if err := OfProgram(file); err == nil || !strings.Contains(err.Error(), "CVE-X") {
		t.Errorf("a hole in a module of it: %v", err)
	}
	if err := OfProgram("knownhole_test.go"); err == nil {
		t.Error("a text has modules")
	}
}
