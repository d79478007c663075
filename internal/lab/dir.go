package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/limitio"
)

// Root is where labs live. Each has one directory below it, and nothing of a lab is anywhere else.
const Root = "/run/packetwalk"

// Dir is a lab's directory; its base name is the lab's name.
type Dir string

// validName is what a directory, a socket path (108 bytes, unix(7)) and a host name can hold.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// CheckName says what is wrong with a lab's name.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("lab name %q: use at most 32 lower-case letters, digits and -", name)
	}
	return nil
}

// DirOf returns the directory of the lab called name.
func DirOf(name string) Dir { return Dir(filepath.Join(Root, name)) }

// Name is the lab's name.
func (d Dir) Name() string { return filepath.Base(string(d)) }

func (d Dir) path(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// Socket is the control socket: HTTP with JSON.
func (d Dir) Socket() string { return d.path("lab.sock") }

// EgressSocket is where the API server finds its way to nodes and pods: HTTP CONNECT.
func (d Dir) EgressSocket() string { return d.path("egress.sock") }

// ClusterFile is the configuration that the lab was made from.
func (d Dir) ClusterFile() string { return d.path("cluster.yaml") }

// nextFile is the configuration that the lab is being changed to.
func (d Dir) nextFile() string { return d.ClusterFile() + ".next" }

// wholeFile is the last line of both. Any part of a cluster.yaml may be a valid one, of another cluster.
const wholeFile = "# the end: without this line the file is not whole\n"

// writeCluster writes a cluster.yaml for readSource.
func writeCluster(path string, source []byte) error {
	return atomicfile.Write(path, slices.Concat(bytes.TrimSuffix(source, []byte("\n")), []byte("\n"+wholeFile)), 0o600)
}

// readSource reads what writeCluster wrote.
func readSource(path string) ([]byte, error) {
	text, err := limitio.ReadFile(path, MaxClusterFile+int64(len(wholeFile))+1)
	if err != nil {
		return nil, err
	}
	source, whole := bytes.CutSuffix(text, []byte(wholeFile))
	if !whole {
		return nil, errors.New("it is cut off: its last line is missing")
	}
	return source, nil
}

// fabricState is the file in which the fabric keeps the network as it is.
func (d Dir) fabricState() string { return d.path("fabric.json") }

// Kubeconfig is the administrator's, for use on the host.
func (d Dir) Kubeconfig() string { return d.path("kubeconfig") }

// NetNS is the bind mount of a host's network namespace.
func (d Dir) NetNS(host string) string { return d.path("netns", host) }

// PodNetNSDir holds the bind mounts of the pods' network namespaces.
func (d Dir) PodNetNSDir() string { return d.path("netns", "pods") }

// GroupNetNSDir and GroupHostNetNSDir hold the bind mounts of container groups' network namespaces, and of the machines that they run on.
func (d Dir) GroupNetNSDir() string     { return d.path("netns", "groups") }
func (d Dir) GroupHostNetNSDir() string { return d.path("netns", "group-hosts") }

// Groups is the directory of container groups.
func (d Dir) Groups() string { return d.path("groups") }

// Node is the directory of a node.
func (d Dir) Node(name string) string { return d.path("nodes", name) }

// Host is the directory of a VM or an internet host.
func (d Dir) Host(name string) string { return d.path("hosts", name) }

// Log is the log of a component, a node agent or the lab process ("lab").
func (d Dir) Log(component string) string { return filepath.Join(d.logs(), component+".log") }

// logs is the directory of logs, on the lab's disk; no node has such a name.
func (d Dir) logs() string { return filepath.Join(d.Disk(), ".logs") }

// GroupLog is the log of the service proxy of a container group's machine.
func (d Dir) GroupLog(group string) string {
	return filepath.Join(d.logs(), containerGroup, group+".log")
}

func (d Dir) lockFile() string { return d.path("lab.pid") }

// Exists reports whether anything of the lab is there.
func (d Dir) Exists() bool {
	_, err := os.Stat(string(d))
	return err == nil
}

// Process returns the pid of the lab process, or 0 when none runs. The pid file is locked for as long as the process that wrote
// it lives, so a stale or reused pid is never taken for the lab's.
func (d Dir) Process() int {
	f, err := os.Open(d.lockFile())
	if err != nil {
		return 0
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_RDLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
		return 0
	}
	var pid int
	if _, err := fmt.Fscan(f, &pid); err != nil {
		return 0
	}
	return pid
}

// errRunning says that another lab process holds the lab.
var errRunning = errors.New("the lab is already running")

// claim locks the lab for this process until it ends. The lock belongs to the open file (fcntl_locking(2), F_OFD_SETLK), so
// that reading the file elsewhere in this process does not release it.
func (d Dir) claim() error {
	f, err := os.OpenFile(d.lockFile(), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		f.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return errRunning
		}
		return fmt.Errorf("lock %s: %w", d.lockFile(), err)
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(os.Getpid()) + "\n")
	claimed = append(claimed, f)
	return err
}

// claimed keeps the lock files open for the life of the process.
var claimed []*os.File

// List returns the directories of all labs on this machine, by name.
func List() ([]Dir, error) { return labsIn(Root) }

// ListAll is List with those labs of which only their nodes' disks are left: a restart of the machine has ended them.
func ListAll() ([]Dir, error) { return labsIn(Root, StateRoot) }

func labsIn(roots ...string) (dirs []Dir, err error) {
	for _, root := range roots {
		entries, err := os.ReadDir(root)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() && CheckName(e.Name()) == nil {
				dirs = append(dirs, DirOf(e.Name()))
			}
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}

// NameVariable is the environment variable that says which lab is meant where --name does not.
const NameVariable = "PACKETWALK_LAB"

// Select returns the lab that a command means: the one called name or, without a name, the one that NameVariable names, or the
// only one there is.
func Select(name string) (Dir, error) {
	if name == "" {
		name = os.Getenv(NameVariable)
	}
	if name != "" {
		if err := CheckName(name); err != nil {
			return "", err
		}
		if d := DirOf(name); d.Exists() {
			return d, nil
		}
		return "", fmt.Errorf("no lab called %q; 'packetwalk up --name %s' makes one", name, name)
	}
	dirs, err := List()
	if err != nil {
		return "", err
	}
	switch len(dirs) {
	case 0:
		return "", errors.New("no lab is here; 'packetwalk up' makes one")
	case 1:
		return dirs[0], nil
	}
	names := make([]string, len(dirs))
	for i, d := range dirs {
		names[i] = d.Name()
	}
	return "", fmt.Errorf("several labs are here (%s); say which with --name or %s", strings.Join(names, ", "), NameVariable)
}
