//go:build linux

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestWorkplaceWithoutRoom makes a workplace on a file system that becomes full at each of its files in turn, and where TMPDIR is missing.
func TestWorkplaceWithoutRoom(t *testing.T) {
	kerneltest.NeedRoot(t)
	check := func(t *testing.T, want error) {
		w, err := newWorkplace(lab.DirOf("full"))
		if err == nil {
			w.remove()
			t.Fatal("no error")
		}
		if !errors.Is(err, want) || !strings.Contains(err.Error(), "set TMPDIR") {
			t.Errorf("got %v; want %v and the remedy", err, want)
		}
	}
	// The root of the file system is an inode as well; the workplace has two folders, two links and the programs.
	for inodes := 1; inodes < 1+2+2+len(programs); inodes++ {
		t.Run(fmt.Sprintf("%d inodes", inodes), func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("nr_inodes=%d", inodes)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			t.Setenv("TMPDIR", dir)
			check(t, unix.ENOSPC)
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
		check(t, os.ErrNotExist)
	})
}

// TestMissingTemporaryDirectory: what needs $TMPDIR for a moment says so where it is missing.
func TestMissingTemporaryDirectory(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	program := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module x\n", "main.go": "package main\n\nfunc main() {}\n"} {
		if err := os.WriteFile(filepath.Join(program, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, args := range map[string][]string{
		"walk":        {"walk", "--snapshot", "-", "--from", "10.0.0.1", "--to", "10.0.0.2"},
		"image build": {"image", "build", program, "-t", "missing-tmpdir:1"},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			var errs bytes.Buffer
			if code := Main(args, Streams{In: in, Out: io.Discard, Err: &errs}); code == 0 || !strings.Contains(errs.String(), "set TMPDIR to") {
				t.Errorf("exit status %d, %q; want the remedy", code, &errs)
			}
		})
	}
}

// TestShellSettings: an interactive shell reads the user's settings, which may name another cluster, other programs and functions. In it
// kubectl, az and ssh are the lab's all the same, and so is the cluster of other programs.
func TestShellSettings(t *testing.T) {
	kerneltest.NeedRoot(t)
	if _, err := exec.LookPath("bash"); err != nil {
		kerneltest.Missing(t, "bash: %v", err)
	}
	home := t.TempDir()
	settings := "shopt -s expand_aliases\nexport KUBECONFIG=/other KUBERC=/other KUBECACHEDIR=/other KUBERNETES_MASTER=http://127.0.0.1:1\n" +
		"export PACKETWALK_LAB=other PATH=" + home + ":$PATH\nmine() { echo \"my own\"; }\n"
	for _, name := range []string{"kubectl", "k", "az", "ssh", "sudo", "packetwalk"} {
		settings += fmt.Sprintf("alias %[1]s='echo other'\n", name)
		if name != "k" {
			settings += fmt.Sprintf("function %s { echo other; }\n", name)
		}
		if err := os.WriteFile(filepath.Join(home, name), []byte("#!/bin/sh\necho other\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, ".bashrc"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", home)
	t.Setenv("BASH_FUNC_kubectl%%", "() { echo other; }")
	d := lab.DirOf("settings")
	w, err := newWorkplace(d)
	if err != nil {
		t.Fatal(err)
	}
	defer w.remove()
	args, err := w.shell(true)
	if err != nil {
		t.Fatal(err)
	}
	const line = "type -p kubectl k az ssh sudo packetwalk\nmine\nenv | grep -E '^(KUBE|PACKETWALK_LAB)' | sort\n"
	var want strings.Builder
	for _, name := range []string{"kubectl", "k", "az", "ssh", "sudo", "packetwalk"} {
		fmt.Fprintln(&want, filepath.Join(w.dir, "bin", name))
	}
	fmt.Fprintf(&want, "my own\nKUBECACHEDIR=/run/packetwalk/settings/kubectl\nKUBECONFIG=%s\nKUBERC=off\nPACKETWALK_LAB=settings\n", d.Kubeconfig())
	cmd := &exec.Cmd{Path: args[0], Args: args, Env: w.env, Stdin: strings.NewReader(line)}
	if out, err := cmd.Output(); err != nil || string(out) != want.String() {
		t.Errorf("%v, got\n%swant\n%s", err, out, &want)
	}
	cmd = &exec.Cmd{Path: args[0], Args: []string{args[0], "-c", "type -t kubectl"}, Env: w.env}
	if out, err := cmd.Output(); err != nil || string(out) != "file\n" {
		t.Errorf("with a function in the environment kubectl is %q, %v", out, err)
	}
}
