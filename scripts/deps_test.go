package scripts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A machine is a folder that is all of PATH, but for /usr/sbin and /sbin.
type machine struct {
	t   *testing.T
	bin string
}

// newMachine has no Go; apt offers golang-go of a version, as "apt-cache policy" writes it, and installs it.
func newMachine(t *testing.T, candidate, minor string) machine {
	t.Helper()
	m := machine{t, filepath.Join(t.TempDir(), "bin")}
	if err := os.Mkdir(m.bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "sed", "dirname", "id", "cat", "env", "rm", "mktemp", "date", "chmod"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(m.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	m.program("sudo", `while [ $# -gt 0 ]; do case $1 in -*) shift;; *) break;; esac; done; exec "$@"`)
	m.program("apt-cache", fmt.Sprintf("[ -e %s/updated ] && printf 'golang-go:\\n  Installed: (none)\\n  Candidate: %s\\n'", m.bin,
		candidate))
	m.program("apt-get", fmt.Sprintf(`for i in 1 2 3 4 5; do echo "Get:$i noise of apt"; done
case $1 in
update) : > %[1]s/updated;;
install) echo "$@" > %[1]s/installed
	case " $* " in *" golang-go "*) [ -e %[1]s/go ] || { cat > %[1]s/go <<'X'
%[2]s
X
	chmod 755 %[1]s/go; };; esac;;
esac`, m.bin, "#!/bin/sh\n"+goProgram(minor)))
	return m
}

// goProgram returns a script that answers as a Go of that minor version, 0 for none: those from 1.21 on take any go.mod.
func goProgram(minor string) string {
	return fmt.Sprintf(`case $1 in
version) echo "go version go1.%[1]s.2 linux/amd64";;
list) [ %[1]s -ge 21 ] || { echo "go: errors parsing go.mod" >&2; exit 1; }
	[ -n "$TOOLCHAIN_IS_HERE" ] || echo "go: downloading go1.26.0 (linux/amd64)" >&2;;
mod) if [ "$GOPROXY" = off ]; then [ -n "$MODULES_ARE_HERE" ]; else for i in 1 2 3 4 5; do echo "go: downloading example.com/m$i v1.0.0" >&2; done; fi;;
esac`, minor)
}

// program puts a script in PATH, in place of the link to a program of this machine that may be there.
func (m machine) program(name, script string) {
	m.t.Helper()
	path := filepath.Join(m.bin, name)
	_ = os.Remove(path)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		m.t.Fatal(err)
	}
}

// deps runs the script and gives what it prints, and whether it succeeds.
func (m machine) deps(env ...string) (string, bool) {
	m.t.Helper()
	cmd := exec.Command("./deps", "sh:dash", "more:a-package")
	cmd.Env = append(env, "PATH="+m.bin, "HOME="+m.t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// installed returns the packages that apt was asked for.
func (m machine) installed() string {
	text, _ := os.ReadFile(filepath.Join(m.bin, "installed"))
	return string(text)
}

// TestWithoutGo: the distribution's Go is installed with the other packages where it is one that gets the right version by itself; where it
// is too old nothing is installed, and one line says what to do.
func TestWithoutGo(t *testing.T) {
	for _, tt := range []struct {
		system, candidate, minor string
		good                     bool
	}{
		{"Debian 12", "2:1.19~1", "19", false},
		{"Debian 13", "2:1.24~2", "24", true},
		{"Ubuntu 24.04", "2:1.22~2build1", "22", true},
		{"without a package", "(none)", "0", false},
	} {
		t.Run(tt.system, func(t *testing.T) {
			m := newMachine(t, tt.candidate, tt.minor)
			out, good := m.deps()
			if good != tt.good || strings.Contains(out, "noise of apt") {
				t.Errorf("succeeds: %v\n%s", good, out)
			}
			if got := strings.Contains(m.installed(), "golang-go"); got != tt.good || got != strings.Contains(m.installed(), "a-package") ||
				strings.Contains(m.installed(), "dash") {
				t.Errorf("installed: %s", m.installed())
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if last := lines[len(lines)-1]; !tt.good &&
				(len(lines) != 2 || !strings.Contains(last, "install Go 1.26.0 or later from https://go.dev/dl")) {
				t.Errorf("says\n%s", out)
			}
			if tt.good && (len(lines) != 4 || !strings.Contains(out, "\ngo: downloading go1.26.0") ||
				!strings.HasPrefix(lines[3], "downloading the Go modules that this is built of: ")) {
				t.Errorf("says\n%s", out)
			}
		})
	}
}

// TestWithGo: one that is there is taken, and one that is too old is not replaced in silence.
func TestWithGo(t *testing.T) {
	m := newMachine(t, "2:1.24~2", "24")
	m.program("go", goProgram("25"))
	if out, good := m.deps("TOOLCHAIN_IS_HERE=1", "MODULES_ARE_HERE=1"); !good || strings.Contains(m.installed(), "golang-go") ||
		strings.Contains(out, "Go") {
		t.Errorf("Go 1.25: %v, installed: %s\n%s", good, m.installed(), out)
	}
	m.program("go", goProgram("18"))
	out, good := m.deps()
	if want := m.bin + "/go is Go 1.18, and before the one of the system in PATH: take it out, or install Go 1.26.0 or later"; good ||
		!strings.Contains(out, want) {
		t.Errorf("Go 1.18: %v\n%s", good, out)
	}
}

// TestList: the packages of the programs are printed, and none is installed.
func TestList(t *testing.T) {
	m := newMachine(t, "2:1.24~2", "24")
	cmd := exec.Command("./deps", "--list", "more:a-package")
	cmd.Env = []string{"PATH=" + m.bin}
	out, err := cmd.CombinedOutput()
	packages := strings.Fields(string(out))
	if err != nil || !slices.Contains(packages, "nftables") || !slices.Contains(packages, "a-package") || m.installed() != "" {
		t.Errorf("%v, installed %q\n%s", err, m.installed(), out)
	}
}

// TestQuietly: a line, and the whole of it when the command fails.
func TestQuietly(t *testing.T) {
	out, err := exec.Command("./quietly", "making it", "sh", "-c", "echo noise").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "making it: ") || strings.Count(string(out), "\n") != 1 {
		t.Errorf("%v: %q", err, out)
	}
	out, err = exec.Command("./quietly", "making it", "sh", "-c", "echo one; echo two >&2; exit 7").CombinedOutput()
	if want := "making it: failed\none\ntwo\n"; string(out) != want || err == nil || err.Error() != "exit status 7" {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
}
