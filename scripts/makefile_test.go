package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
)

// TestMakeWithoutGo: on a machine that has no Go yet, which make demo installs, recipes know the machine's architecture.
func TestMakeWithoutGo(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"make", "sh", "uname", "date"} {
		path, err := exec.LookPath(name)
		mustDo(t, err)
		mustDo(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	make := exec.Command(filepath.Join(bin, "make"), "--dry-run", "-C", "..", "demo")
	make.Env = []string{"PATH=" + bin}
	out, err := make.CombinedOutput()
	mustDo(t, err)
	for _, want := range []string{`controlplane build -arch ` + runtime.GOARCH + ` -bin bin realnode\n`, `scripts/base ` + runtime.GOARCH + ` bin\n`,
		`GOARCH=` + runtime.GOARCH + ` .*go build .*-o bin/ `} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
