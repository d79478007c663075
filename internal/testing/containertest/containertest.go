// Package containertest is for tests that run containers. It imports nothing of the project, and only tests import it.
package containertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build builds packetwalk-app, which containers run, in a folder.
func Build(dir string) (binary string, err error) {
	binary = filepath.Join(dir, "packetwalk-app")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, "packetwalk.dev/cmd/packetwalk-app")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build packetwalk-app: %w\n%s", err, out)
	}
	return binary, nil
}
