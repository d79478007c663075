package preload

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/loopmount"
	"packetwalk.dev/internal/pods/isolation"
)

// stage is packetwalk-app's first argument for Main. WORK CONTAINERD CTR follow, and the archive is in archiveFd.
const (
	stage     = "preload"
	archiveFd = 3
)

// backgroundNice is the nice value of the import: the machine's owner has begun to use a lab (setpriority(2)).
const backgroundNice = 10

// startTime bounds the start of containerd.
const startTime = time.Minute

// Main runs packetwalk-app's import of images and returns its exit status; ok is false for other arguments. main must have locked the main
// thread.
func Main(args []string) (status int, ok bool) {
	if len(args) != 5 || args[1] != stage {
		return 0, false
	}
	if err := fillDisk(args[2], args[3], args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "preload images:", err)
		return 1, true
	}
	return 0, true
}

// containerdConfig is containerd's configuration: without CRI, which needs a node's network. The verbs are its root, state, directory of
// temporary mounts, and socket.
const containerdConfig = `version = 3
root = %q
state = %q
temp = %q
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = %q
`

// fillDisk imports the archive into the file system in work, in a mount namespace of this thread.
func fillDisk(work, containerd, ctr string) (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare the mount namespace: %w", err)
	}
	if err := isolation.IsolateMounts(unix.MS_PRIVATE); err != nil {
		return err
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, backgroundNice); err != nil {
		return err
	}
	disk, run := filepath.Join(work, "mount"), filepath.Join(work, "run")
	if err := os.Mkdir(disk, 0o700); err != nil {
		return err
	}
	if err := loopmount.Mount(filepath.Join(work, "disk"), disk); err != nil {
		return err
	}
	if err := isolation.MountAt("tmpfs", run, unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		return err
	}
	socket, config := filepath.Join(run, "socket"), filepath.Join(run, "config.toml")
	text := fmt.Sprintf(containerdConfig, filepath.Join(disk, root), filepath.Join(run, "state"), filepath.Join(run, "tmp"), socket)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	daemon := exec.Command(containerd, "--config", config, "--log-level", "warn")
	daemon.Stderr, daemon.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := daemon.Start(); err != nil {
		return err
	}
	err = importArchive(ctr, socket)
	if err != nil {
		_ = daemon.Process.Kill()
	} else {
		err = daemon.Process.Signal(unix.SIGTERM)
	}
	if e := daemon.Wait(); err == nil && e != nil {
		err = fmt.Errorf("containerd: %w", e)
	}
	return errors.Join(err, unix.Unmount(disk, 0)) // writes it to the file
}

// importArchive waits for containerd and has it import the archive.
func importArchive(ctr, socket string) error {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Since(began) > startTime {
			return fmt.Errorf("containerd did not start within %v", startTime)
		}
	}
	load := exec.Command(ctr, "--address", socket, "--namespace", "k8s.io", "images", "import", "-")
	load.Stdin, load.Stderr = os.NewFile(archiveFd, "archive"), os.Stderr
	load.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := load.Run(); err != nil {
		return fmt.Errorf("ctr images import: %w", err)
	}
	return nil
}
