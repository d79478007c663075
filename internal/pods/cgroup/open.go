package cgroup

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// opened are the hierarchies that this process has open, by their controllers. They stay open: paths of groups lead through them.
var opened struct {
	sync.Mutex
	paths map[string]string
}

// private reports whether the hierarchy is mounted for this process alone.
func (h Hierarchy) private() bool { return strings.HasPrefix(h.Point, "/proc/") }

// openHierarchy mounts a hierarchy at no directory, and returns a path to it. Other processes can use the path as long as this one runs.
func openHierarchy(controllers string) (path string, err error) {
	opened.Lock()
	defer opened.Unlock()
	if path, ok := opened.paths[controllers]; ok {
		return path, nil
	}
	self, err := os.Readlink("/proc/self") // which may be of another PID namespace
	if err != nil {
		return "", err
	}
	mount, err := mountHierarchy(controllers)
	if err != nil {
		return "", fmt.Errorf("mount control groups (cgroup %s): %w", cmp.Or(controllers, "v2"), err)
	}
	if opened.paths == nil {
		opened.paths = map[string]string{}
	}
	path = fmt.Sprintf("/proc/%s/fd/%d", self, mount)
	opened.paths[controllers] = path
	return path, nil
}

func mountHierarchy(controllers string) (fd int, err error) {
	kind := "cgroup"
	if controllers == "" {
		kind = "cgroup2"
	}
	context, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer unix.Close(context)
	for option := range strings.SplitSeq(controllers, ",") {
		name, named := strings.CutPrefix(option, "name=")
		switch {
		case option == "":
		case named:
			if err = unix.FsconfigSetString(context, "name", name); err == nil {
				err = unix.FsconfigSetFlag(context, "none")
			}
		default:
			err = unix.FsconfigSetFlag(context, option)
		}
		if err != nil {
			return 0, err
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return 0, err
	}
	return unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
}
