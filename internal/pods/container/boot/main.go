package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/rootfs"
)

// Main is packetwalk-app's main function; args are the process's, stderr is where it complains. It returns the exit status. main must have
// locked the main thread to the main goroutine in an init function: some stages change that thread's namespaces, or become a command on it.
func Main(args []string, stderr io.Writer) int {
	if len(args) == 0 {
		return usage(stderr)
	}
	if program, ok := app.FindProgram(path.Base(args[0])); ok {
		return runProgram(program, args)
	}
	if len(args) != 3 {
		return usage(stderr)
	}
	switch args[1] {
	case container.StageApplication:
		return first(args[2])
	case container.StageShim:
		return shim(args[2])
	case container.StageStart:
		if err := hide(); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		return container.Starter(args[2])
	case container.StageInit:
		return begin(args[2])
	case "run":
		return run(args[2], stderr)
	}
	return usage(stderr)
}

func usage(stderr io.Writer) int {
	fmt.Fprintln(stderr, "packetwalk-app is a container's shim and first process; packetwalk starts it")
	return 2
}

// runProgram is a program of an image that a command started: a shell script's nginx. Its name is a symbolic link to this binary.
func runProgram(program app.Program, args []string) int {
	if os.Getpid() == 1 {
		app.BuryOthers()
	}
	ctx, stop := signal.NotifyContext(background, unix.SIGTERM, unix.SIGINT, unix.SIGQUIT)
	defer stop()
	return program.Run(ctx, &app.Process{Args: args, Env: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr, Ready: func() {}})
}

// run becomes a command on a host: container.Run as JSON.
func run(arg string, stderr io.Writer) int {
	var r container.Run
	err := json.Unmarshal([]byte(arg), &r)
	if err == nil {
		err = enterHost(&r)
	}
	if err == nil && r.Dir != "" {
		err = os.Chdir(r.Dir)
	}
	if err == nil {
		err = become(r.Args)
	}
	// It is no container that was to be started, but a command.
	fmt.Fprintln(stderr, strings.TrimPrefix(err.Error(), container.ErrStart.Error()+": "))
	switch {
	case !errors.Is(err, container.ErrStart):
		return 125
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.ENOEXEC):
		return 126
	}
	return 127
}

// enterHost takes the calling thread into the host's network namespace and new mount and UTS namespaces.
func enterHost(r *container.Run) error {
	runtime.LockOSThread()
	// The directory may be in the mounts that change; the thread stays in it by its own reference.
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("new mount and UTS namespaces: %w; packetwalk needs root", err)
	}
	ns, err := os.Open(r.NetNS)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", r.NetNS, err)
	}
	if r.Hostname != "" {
		if err := unix.Sethostname([]byte(r.Hostname)); err != nil {
			return fmt.Errorf("set hostname %s: %w", r.Hostname, err)
		}
	}
	if err := rootfs.IsolateMounts(unix.MS_SLAVE); err != nil {
		return err
	}
	if r.ResolvConf != nil {
		if err := coverResolvConf(r.ResolvConf); err != nil {
			return fmt.Errorf("/etc/resolv.conf: %w", err)
		}
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", rootfs.NoExec, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	return nil
}

// coverResolvConf mounts a file over the machine's, or over what that is a link to: one of a tmpfs that has /sys for its place until it is
// mounted there; the caller mounts /sys afterwards.
func coverResolvConf(text []byte) error {
	const aside = "/sys/resolv.conf"
	if err := unix.Mount("tmpfs", "/sys", "tmpfs", rootfs.NoExec, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs for it: %w", err)
	}
	if err := os.WriteFile(aside, text, 0o644); err != nil {
		return err
	}
	volumes, err := openVolumes([]container.Mount{{Source: aside, Destination: "/etc/resolv.conf", ReadOnly: true}})
	if err != nil {
		return err
	}
	defer volumes[0].tree.Close()
	point, err := os.OpenFile(volumes[0].Destination, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer point.Close()
	if err := volumes[0].attachTo(point); err != nil {
		return err
	}
	return unix.Unmount("/sys", unix.MNT_DETACH)
}

// become executes a command, or a shell, in this process.
func become(args []string) error {
	env := os.Environ()
	if len(args) == 0 {
		args = []string{shell(env)}
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	file, err := container.LookPath(args[0], env, dir)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: exec: %q: %w", container.ErrStart, args[0], unix.Exec(file, args, env))
}

func shell(env []string) string {
	for _, name := range []string{container.Getenv(env, "SHELL"), "bash"} {
		if _, err := container.LookPath(name, env, "/"); err == nil {
			return name
		}
	}
	return "/bin/sh"
}
