package images

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"go/build"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/base/sudouser"
)

// longestBuild is how long the go command may take; it may have modules to fetch.
const longestBuild = 10 * time.Minute

// machines are the names that programs have for what GOARCH says.
var machines = map[string]elf.Machine{
	"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "arm": elf.EM_ARM, "386": elf.EM_386, "riscv64": elf.EM_RISCV, "ppc64le": elf.EM_PPC64,
	"s390x": elf.EM_S390, "loong64": elf.EM_LOONGARCH,
}

// checkProgram tells why a file cannot be an image's only program.
func checkProgram(f *os.File) error {
	e, err := elf.NewFile(f)
	if err != nil {
		return errors.New("is no program of Linux: give a static one, or a folder with a Go main package")
	}
	if want := machines[runtime.GOARCH]; e.Machine != want {
		return fmt.Errorf("is for %s; this machine is %s (%s)", e.Machine, want, runtime.GOARCH)
	}
	const remedy = "which the image would not have: link it statically (Go: CGO_ENABLED=0; C: -static)"
	for _, p := range e.Progs {
		if p.Type == elf.PT_INTERP {
			name, err := io.ReadAll(io.LimitReader(p.Open(), 256))
			if err != nil {
				return err
			}
			return fmt.Errorf("is linked dynamically and needs %s, %s", strings.TrimRight(string(name), "\x00"), remedy)
		}
	}
	if needed, err := e.ImportedLibraries(); err == nil && len(needed) > 0 {
		return fmt.Errorf("needs %s, %s", strings.Join(needed, ", "), remedy)
	}
	return nil
}

// compile has the go command build a directory's main package, as the user who called sudo. The program is open, and nowhere any more.
func compile(ctx context.Context, dir string) (*os.File, string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, "", err
	}
	if err := checkSources(dir); err != nil {
		return nil, "", err
	}
	as, err := sudouser.Get()
	if err != nil {
		return nil, "", err
	}
	tool, err := findGo()
	if err != nil {
		return nil, "", err
	}
	out, err := os.MkdirTemp("", "packetwalk-build-")
	if err != nil {
		return nil, "", fmt.Errorf("make a directory for the program: %w; set TMPDIR to a directory with room", err)
	}
	defer os.RemoveAll(out)
	root, err := os.OpenRoot(out)
	if err != nil {
		return nil, "", err
	}
	defer root.Close()
	if as.Credential != nil {
		if err := root.Chown(".", int(as.Credential.Uid), int(as.Credential.Gid)); err != nil {
			return nil, "", err
		}
	}
	target, err := buildTarget(dir, out)
	if err != nil {
		return nil, "", err
	}
	compiler := program.Command{Path: tool, Args: append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o"}, target...),
		Env: append(as.Environment(), "CGO_ENABLED=0", "GOOS="+here.OS, "GOARCH="+here.Architecture), Dir: dir, As: as.Credential,
		Limit: longestBuild}
	if _, err := compiler.Output(ctx); err != nil {
		return nil, "", err
	}
	made, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, "", err
	}
	if len(made) != 1 {
		return nil, "", fmt.Errorf("the go command made %d programs of %s, not one", len(made), dir)
	}
	f, err := openRegular(root, made[0].Name())
	return f, made[0].Name(), err
}

// buildTarget returns what go build has after -o: where the program goes, named as the go command or else the directory is, and the
// package; its files where they belong to no module.
func buildTarget(dir, out string) ([]string, error) {
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return []string{out + "/", "."}, nil
		}
		if d == filepath.Dir(d) {
			break
		}
	}
	files := build.Default
	files.CgoEnabled = false
	p, err := files.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	return append([]string{filepath.Join(out, filepath.Base(dir))}, p.GoFiles...), nil
}

// checkSources says what to do with a directory that is not for the go command.
func checkSources(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(files, func(f os.DirEntry) bool { return strings.HasSuffix(f.Name(), ".go") }) {
		return nil
	}
	for _, name := range []string{"Dockerfile", "Containerfile"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("%s has a %s, and those are not built here: build it with Docker, and load what that saves: "+
				"docker build -t NAME %s && docker save NAME | packetwalk image load -", dir, name, dir)
		}
	}
	return fmt.Errorf("%s has no Go files: give a folder with a Go main package, or a static program", dir)
}

// findGo finds the go command also where sudo's PATH does not lead.
func findGo() (string, error) {
	for _, name := range []string{"go", "/usr/local/go/bin/go", "/snap/bin/go"} {
		if found, err := exec.LookPath(name); err == nil {
			return filepath.Abs(found)
		}
	}
	return "", errors.New("there is no go command: install Go (https://go.dev/dl), or give a program that CGO_ENABLED=0 go build has made elsewhere")
}
