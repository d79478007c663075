// Package runc runs commands in privileged containers of upstream's runc, as "docker run --privileged" does.
package runc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Spec describes a container.
type Spec struct {
	Program string // runc's path; "make controlplane" builds bin/realnode/runc
	// Args are the first process. By default it sleeps, and does not collect orphans.
	Args   []string
	Root   string // its root directory
	Mounts []Mount
	// HostNetwork keeps the network of this machine. The container has a new one otherwise.
	HostNetwork bool
	Env         []string // beside HOME and PATH, or in place of them
	// Cgroup is a directory of cgroup v2 that becomes the root of the container's. It is this process's own if Cgroup is nil.
	Cgroup *os.File
}

// A Mount is one of the OCI runtime specification.
type Mount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options,omitempty"`
}

// Bind mounts a directory or a file of this machine under its own path.
func Bind(path string, options ...string) Mount {
	return Mount{Destination: path, Type: "bind", Source: path, Options: append([]string{"rbind"}, options...)}
}

// noExec are the options of mounts that hold no programs.
var noExec = []string{"nosuid", "noexec", "nodev"}

// Cgroups are this machine's control groups, mounted as container engines do.
var Cgroups = Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: noExec}

// Cgroup2 is cgroup v2 alone.
var Cgroup2 = Mount{Destination: "/sys/fs/cgroup", Type: "cgroup2", Source: "cgroup2", Options: noExec}

// A Container runs until it is removed.
type Container struct{ program, name, bundle string }

// timeout bounds each call of runc, except for commands in containers.
const timeout = time.Minute

// Start starts a container. Its name is unique on the machine.
func Start(ctx context.Context, name string, s Spec) (*Container, error) {
	bundle, err := os.MkdirTemp("", "runc-*")
	if err != nil {
		return nil, err
	}
	c := &Container{s.Program, name, bundle}
	config, err := json.Marshal(s.config(name))
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600)
	}
	if err == nil {
		err = c.start(ctx, s.Cgroup)
	}
	if err != nil {
		return nil, errors.Join(err, c.Remove())
	}
	return c, nil
}

func (c *Container) start(ctx context.Context, cgroup *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	log, err := os.Create(filepath.Join(c.bundle, "log")) // a pipe would stay open in the container
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, c.program, "run", "--detach", "--bundle", c.bundle, c.name)
	cmd.Stdout, cmd.Stderr = log, log
	if cgroup != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	}
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(log.Name()) // the error says enough without
		return fmt.Errorf("start container %s: %w: %s", c.name, err, text)
	}
	return nil
}

// Command returns a command in the container, to be started.
func (c *Container) Command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.program, append([]string{"exec", c.name}, args...)...)
}

// Remove ends the container with all its processes.
func (c *Container) Remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.program, "delete", "--force", c.name).CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove container %s: %w: %s", c.name, err, out)
	}
	return os.RemoveAll(c.bundle)
}

// capabilities are the names of all, from number 0 on (capabilities(7)).
const capabilities = `CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
	NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE
	SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM
	BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`

// ownCapabilities returns the capabilities that this process may have.
func ownCapabilities() (names []string) {
	for i, name := range strings.Fields(capabilities) {
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(i), 0, 0, 0); err == nil && has == 1 {
			names = append(names, "CAP_"+name)
		}
	}
	return names
}

type object = map[string]any

// config returns the container's config.json of the OCI runtime specification, version 1.0.
func (s *Spec) config(name string) object {
	all, args := ownCapabilities(), s.Args
	if len(args) == 0 {
		args = []string{"sleep", "infinity"}
	}
	namespaces := []object{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "cgroup"}}
	if !s.HostNetwork {
		namespaces = append(namespaces, object{"type": "network"})
	}
	mounts := []Mount{
		{"/proc", "proc", "proc", nil},
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "mode=755"}},
		{"/dev/pts", "devpts", "devpts", []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666"}},
		{"/dev/shm", "tmpfs", "shm", noExec},
		{"/dev/mqueue", "mqueue", "mqueue", noExec},
		{"/sys", "sysfs", "sysfs", noExec},
	}
	return object{
		"ociVersion": "1.0.2", "hostname": name,
		"root": object{"path": s.Root},
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/", "args": args,
			"env":          append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}, s.Env...),
			"capabilities": object{"bounding": all, "effective": all, "permitted": all},
		},
		"mounts": append(mounts, s.Mounts...),
		"linux": object{
			"namespaces": namespaces,
			"resources":  object{"devices": []object{{"allow": true, "access": "rwm"}}},
			// No udev makes others: those of a machine at the time when the container starts.
			"devices": []object{
				{"path": "/dev/loop-control", "type": "c", "major": 10, "minor": 237},
				{"path": "/dev/kmsg", "type": "c", "major": 1, "minor": 11},
				{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229},
				{"path": "/dev/net/tun", "type": "c", "major": 10, "minor": 200},
			},
		},
	}
}
