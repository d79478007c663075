package isolation

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// execOnHost becomes a command on a host, a HostCommand as JSON. It returns only if it cannot.
func execOnHost(text string) (status int, err error) {
	var c HostCommand
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return statusFailed, err
	}
	if err := c.enter(); err != nil {
		return statusFailed, err
	}
	argv := c.Args
	if len(argv) == 0 {
		argv = []string{shell()}
	}
	path, err := exec.LookPath(argv[0])
	if err == nil {
		err = &os.PathError{Op: "execute", Path: path, Err: unix.Exec(path, argv, os.Environ())}
	}
	return notExecuted(err), err
}

// shell returns the user's shell, where there is one.
func shell() string {
	for _, name := range []string{os.Getenv("SHELL"), "bash"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return "/bin/sh"
}

// enter takes the calling thread into the host's network namespace and new mount and UTS namespaces.
func (c *HostCommand) enter() error {
	// The directory may be in the mounts that change; the thread stays in it by its own reference.
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("new mount and UTS namespaces: %w; packetwalk needs root", err)
	}
	ns, err := os.Open(c.NetNS)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", c.NetNS, err)
	}
	if c.Hostname != "" {
		if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
			return fmt.Errorf("set hostname %s: %w", c.Hostname, err)
		}
	}
	if err := IsolateMounts(unix.MS_SLAVE); err != nil {
		return err
	}
	if c.ResolvConf != nil {
		if err := coverResolvConf(c.ResolvConf); err != nil {
			return fmt.Errorf("/etc/resolv.conf: %w", err)
		}
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", NoExec, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	return nil
}

// coverResolvConf mounts a file over the machine's, or over what that is a link to: one of a tmpfs that has /sys for its place until it is
// mounted there; the caller mounts /sys afterwards.
func coverResolvConf(text []byte) error {
	const aside = "/sys/resolv.conf"
	if err := unix.Mount("tmpfs", "/sys", "tmpfs", NoExec, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs for it: %w", err)
	}
	if err := os.WriteFile(aside, text, 0o644); err != nil {
		return err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, aside, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("make it read-only: %w", err)
	}
	point, err := unix.Open("/etc/resolv.conf", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(point)
	if err := unix.MoveMount(tree, "", point, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Unmount("/sys", unix.MNT_DETACH)
}
