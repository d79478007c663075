// Package containertest is for tests that run containers. It imports nothing of the project, and only tests import it.
package containertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build builds packetwalk-app, which containers run, in a folder.
func Build(dir string) (binary string, err error) { return BuildProgram(dir, "packetwalk-app") }

// BuildProgram builds a program of the project's in a folder.
func BuildProgram(dir, name string) (binary string, err error) {
	binary = filepath.Join(dir, name)
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, "packetwalk.dev/cmd/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return binary, nil
}
