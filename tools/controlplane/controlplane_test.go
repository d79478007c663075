package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/modfile"
)

// The nested modules' go.mod are what gen makes from the go.mod of the release that they require, and the release is one.
func TestModulesAreGenerated(t *testing.T) {
	releases := map[string]bool{}
	for _, dir := range generated(filepath.Join("..", "..")) {
		current, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		upstream, err := upstreamGoMod(t.Context(), dir, current)
		if err != nil {
			t.Fatal(err)
		}
		want, err := generate(current, upstream)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(current)); diff != "" {
			t.Errorf("%s: run go run ./tools/controlplane gen (-want +got):\n%s", dir, diff)
		}
		file, err := modfile.Parse(dir, current, nil)
		if err != nil {
			t.Fatal(err)
		}
		release, err := kubernetesVersion(file)
		if err != nil {
			t.Fatal(err)
		}
		releases[release] = true
	}
	if len(releases) != 1 {
		t.Errorf("the modules require different releases: %v", releases)
	}
}

const upstreamExample = `module k8s.io/kubernetes

godebug default=go1.25

require (
	k8s.io/api v0.0.0
	k8s.io/klog/v2 v2.1.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/client-go => ./staging/src/k8s.io/client-go
	example.org/fork => example.org/other v1.0.0
)
`

func TestGenerate(t *testing.T) {
	current := `module packetwalk.dev/controlplane

godebug (
	default=go1.24
	madvdontneed=1
)

require (
	k8s.io/client-go v0.35.3
	k8s.io/kubernetes v1.35.8
)

require (
	k8s.io/api v0.0.0 // indirect
	k8s.io/klog/v2 v2.1.0 // indirect
)

replace (
	k8s.io/api => k8s.io/api v0.35.3
	k8s.io/gone => k8s.io/gone v0.35.3
)

replace packetwalk.dev => ../..
`
	want := `module packetwalk.dev/controlplane

godebug default=go1.25

require (
	k8s.io/client-go v0.35.8
	k8s.io/kubernetes v1.35.8
)

require (
	k8s.io/api v0.35.8 // indirect
	k8s.io/klog/v2 v2.1.0 // indirect
)

replace packetwalk.dev => ../..

replace (
	k8s.io/api => k8s.io/api v0.35.8
	k8s.io/client-go => k8s.io/client-go v0.35.8
)
`
	got, err := generate([]byte(current), []byte(upstreamExample))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestGenerateRefuses(t *testing.T) {
	tests := []struct{ name, module, want string }{
		{"no release", "module m\n", "does not require k8s.io/kubernetes"},
		{"another major version", "module m\nrequire k8s.io/kubernetes v0.1.0\n", "not a v1 release"},
		{"no go.mod", "modul m\n", "unknown directive"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := generate([]byte(test.module), []byte(upstreamExample))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	started := time.Now()
	p := newProgress(&bytes.Buffer{}, false, []string{"k8s.io/api/core/v1", "k8s.io/api/apps/v1", "m"}, started)
	for _, text := range []string{"go: downloading k8s.io/api v0.35.8\nk8s.io/api/core/v1\nk8s.io/ap", "i/apps/v1\n", "# k8s.io/api/apps/v1\n",
		"./x.go:1:2: undefined: y\n"} {
		if n, err := p.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	if got, want := p.status(started.Add(70*time.Second)), "2 of 3 packages compiled, 1m10s"; got != want {
		t.Errorf("status is %q, want %q", got, want)
	}
	if got, want := p.messages(), "# k8s.io/api/apps/v1\n./x.go:1:2: undefined: y\n"; got != want {
		t.Errorf("messages are %q, want %q", got, want)
	}
	if _, err := p.Write([]byte("m\n")); err != nil {
		t.Fatal(err)
	}
	if got, want := p.status(started), "3 of 3 packages compiled, linking, 0s"; got != want {
		t.Errorf("status is %q, want %q", got, want)
	}
}

// small returns a target that builds a module of one file.
func small(t *testing.T, source string) target {
	t.Helper()
	module := t.TempDir()
	test := "package main\n\nimport \"testing\"\n\nfunc TestMain(*testing.M) { println(\"tested\") }\n"
	for name, text := range map[string]string{"go.mod": "module m\n", "main.go": source, "all_test.go": test} {
		if err := os.WriteFile(filepath.Join(module, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return target{product: product{name: "program", source: ".", what: "a program", minutes: 1}, module: module,
		folder: filepath.Join(t.TempDir(), "key"), env: []string{"CGO_ENABLED=0", "GOWORK=off"},
		args: []string{"build", "-ldflags=-s -w"}}
}

// Two builds at once build once: the second finds the first's program, the same file.
func TestBuildOnce(t *testing.T) {
	target := small(t, "package main\n\nfunc main() {}\n")
	var group sync.WaitGroup
	infos := make([]os.FileInfo, 2)
	for i := range infos {
		group.Go(func() {
			if err := target.buildOnce(t.Context()); err != nil {
				t.Error(err)
				return
			}
			var err error
			if infos[i], err = os.Stat(target.binary()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if !t.Failed() && !os.SameFile(infos[0], infos[1]) {
		t.Error("the second build made the program again")
	}
	leftovers(t, target, target.name)
}

// The tests of a package are built as those, whole.
func TestBuildTest(t *testing.T) {
	target := small(t, "package main\n\nfunc main() {}\n")
	target.test = true
	if err := target.buildOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(target.binary()).CombinedOutput(); err != nil || string(out) != "tested\n" {
		t.Errorf("the program says %q, %v", out, err)
	}
	leftovers(t, target, target.name)
}

func TestBuildFails(t *testing.T) {
	target := small(t, "package main\n\nfunc main() { undefined() }\n")
	err := target.buildOnce(t.Context())
	if err == nil || !strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("error is %v, want the compiler's words", err)
	}
	leftovers(t, target)
}

// An interrupted build leaves nothing that looks like a program, and its compilers are gone.
func TestBuildStopped(t *testing.T) {
	target := small(t, "package main\n\nfunc main() {}\n")
	ctx, cancel := context.WithCancel(t.Context())
	// A toolexec program that never ends stands for a long compilation; the signal must reach it too.
	target.args = append(target.args, "-a", "-toolexec=sh -c 'touch "+filepath.Join(target.module, "compiling")+"; exec sleep 1000' --")
	result := make(chan error)
	go func() { result <- target.buildOnce(ctx) }()
	for !exists(filepath.Join(target.module, "compiling")) {
		select {
		case err := <-result:
			t.Fatalf("the build ended by itself: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	if err := <-result; err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("error is %v", err)
	}
	leftovers(t, target)
}

// leftovers checks that the build's folder holds the lock and wanted, nothing else.
func leftovers(t *testing.T, target target, wanted ...string) {
	t.Helper()
	entries, err := os.ReadDir(target.folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if diff := cmp.Diff(append([]string{"lock"}, wanted...), names); diff != "" {
		t.Errorf("folder (-want +got):\n%s", diff)
	}
}

func TestKeyFollowsSources(t *testing.T) {
	target := small(t, "package main\n\nfunc main() {}\n")
	key := func(platform string) string {
		k, err := target.key(platform)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write := func(name string) {
		if err := os.WriteFile(filepath.Join(target.module, name), []byte("package main\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	base := key("linux amd64")
	write("main_test.go")
	if key("linux amd64") != base {
		t.Error("a test file changed the key")
	}
	if key("linux arm64") == base {
		t.Error("the platform does not change the key")
	}
	write("extra.go")
	if key("linux amd64") == base {
		t.Error("a source file does not change the key")
	}
}

func TestRelink(t *testing.T) {
	link := filepath.Join(t.TempDir(), "bin", "program")
	for _, path := range []string{"/cache/one", "/cache/one", "/cache/two"} {
		if err := relink(path, link); err != nil {
			t.Fatal(err)
		}
		if got, err := os.Readlink(link); err != nil || got != path {
			t.Errorf("link to %q, %v; want %q", got, err, path)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(link)); err != nil || len(entries) != 1 {
		t.Errorf("beside the link: %v, %v", entries, err)
	}
}

func TestLinkerFlags(t *testing.T) {
	module, err := modfile.Parse("go.mod", []byte("module m\nrequire k8s.io/kubernetes v1.35.8\nrequire "+containerdModule+" v2.4.2\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	flags := linkerFlags(module)
	for _, want := range []string{"-s -w", "-X k8s.io/component-base/version.gitVersion=v1.35.8",
		"-X k8s.io/client-go/pkg/version.gitMinor=35", "-X k8s.io/component-base/version.gitMajor=1",
		"-X github.com/containerd/containerd/v2/version.Version=v2.4.2"} {
		if !strings.Contains(flags, want) {
			t.Errorf("flags %q lack %q", flags, want)
		}
	}
}
