// Package loopmount mounts a file that holds a file system.
package loopmount

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
)

// Create makes a file with an empty ext4 file system of a size in bytes. The file takes only what is written. Tables are not made in advance,
// and there is no journal: what it holds does not outlive a power cut.
func Create(ctx context.Context, file string, size int64) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return err
	}
	_, err = program.Command{Path: "mkfs.ext4", Args: []string{"-q", "-F", "-m", "0", "-O", "^has_journal",
		"-E", "nodiscard,lazy_itable_init=1,root_owner=0:0", file}}.Output(ctx)
	return err
}

// loopTries bounds how often another process may take the loop device that was free.
const loopTries = 100

// Mount mounts the ext4 file system of a file. It does not use the machine's /dev, where a container has only the loop devices that
// existed when it started. What programs sync is in the file's page cache: it outlives them, but not a crash of the machine.
func Mount(file, target string) error {
	return mount(file, target, os.O_RDWR, 0, "noinit_itable,nobarrier")
}

// MountReadOnly mounts the file system of a file on a read-only device: even root cannot make the mount writable.
func MountReadOnly(file, target string) error {
	return mount(file, target, os.O_RDONLY, unix.MS_RDONLY, "")
}

func mount(file, target string, access int, flags uintptr, options string) error {
	image, err := os.OpenFile(file, access, 0)
	if err != nil {
		return err
	}
	defer image.Close()
	dev, err := openDevices()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	defer dev.Close()
	loop, err := attachLoop(dev, image, access)
	if err != nil {
		return fmt.Errorf("attach a loop device: %w; in a container, run it with --privileged", err)
	}
	defer loop.Close() // it stays attached until the file system is unmounted
	source := fmt.Sprintf("/proc/self/fd/%d", loop.Fd())
	if err := unix.Mount(source, target, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME|flags, options); err != nil {
		return fmt.Errorf("mount %s: %w", file, err)
	}
	return nil
}

// openDevices mounts the kernel's device nodes for this process alone, at no directory.
func openDevices() (*os.File, error) {
	context, err := unix.Fsopen("devtmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, err
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "devtmpfs"), nil
}

// attachLoop makes a free loop device of a file. It is free again when the last one closes or unmounts it.
func attachLoop(dev, image *os.File, access int) (loop *os.File, err error) {
	open := func(name string, access int) (*os.File, error) {
		return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d/%s", dev.Fd(), name), access, 0)
	}
	control, err := open("loop-control", os.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range loopTries {
		var number int
		if number, err = unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE); err != nil {
			return nil, err
		}
		if loop, err = open(fmt.Sprintf("loop%d", number), access); err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		if access == os.O_RDONLY {
			config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
		}
		copy(config.Info.File_name[:], image.Name())
		if err = unix.IoctlLoopConfigure(int(loop.Fd()), &config); err == nil {
			return loop, nil
		}
		loop.Close()
	}
	return nil, err
}
