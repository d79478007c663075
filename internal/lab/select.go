package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/lab/layout"
)

// Root is where labs live. Each has one directory below it, and nothing of a lab is anywhere else.
const Root = "/run/packetwalk"

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
func DirOf(name string) layout.Dir { return layout.Dir(filepath.Join(Root, name)) }

// List returns the directories of all labs on this machine, by name.
func List() ([]layout.Dir, error) { return labsIn(Root) }

// ListAll does what List does, and adds those labs of which only their nodes' disks are left: a restart of the machine has ended them.
func ListAll() ([]layout.Dir, error) { return labsIn(Root, layout.StateRoot) }

func labsIn(roots ...string) (dirs []layout.Dir, err error) {
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

// DefaultName is the name of a lab that was given none.
const DefaultName = "default"

// Select returns the lab that a command means: the one called name or, without a name, the one that NameVariable names, the only one that
// exists, or the one called DefaultName.
func Select(name string) (layout.Dir, error) {
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
	}
	dirs, err := List()
	if err != nil {
		return "", err
	}
	if name != "" {
		return "", fmt.Errorf("%w; 'packetwalk up --name %s' makes it", &NotFoundError{name, dirs}, name)
	}
	switch len(dirs) {
	case 0:
		return "", errors.New("no lab is here; 'packetwalk up' makes one")
	case 1:
		return dirs[0], nil
	}
	if slices.Contains(dirs, DirOf(DefaultName)) {
		return DirOf(DefaultName), nil
	}
	return "", fmt.Errorf("several labs are here (%s); say which with --name or %s", nameList(dirs), NameVariable)
}

// A NotFoundError names a lab that does not exist, and the labs that do.
type NotFoundError struct {
	Name string
	Labs []layout.Dir
}

// Error implements error.
func (e *NotFoundError) Error() string {
	if len(e.Labs) == 0 {
		return fmt.Sprintf("no lab called %q, nor any other", e.Name)
	}
	return fmt.Sprintf("no lab called %q; there are: %s", e.Name, nameList(e.Labs))
}

// nameList returns the names of labs, separated by commas.
func nameList(labs []layout.Dir) string {
	names := make([]string, len(labs))
	for i, d := range labs {
		names[i] = d.Name()
	}
	return strings.Join(names, ", ")
}

// FindBinaries finds the programs beside the one that runs.
func FindBinaries() (layout.Binaries, error) {
	self, err := os.Executable()
	if err != nil {
		return layout.Binaries{}, err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return layout.Binaries{}, err
	}
	dir := filepath.Dir(self)
	b := layout.Binaries{
		Packetwalk:   self,
		ControlPlane: filepath.Join(dir, "packetwalk-controlplane"),
		Node:         filepath.Join(dir, "packetwalk-node"),
		CNI:          filepath.Join(dir, "packetwalk-cni"),
		PortMap:      filepath.Join(dir, "portmap"),
		App:          filepath.Join(dir, "packetwalk-app"),
		Addon:        filepath.Join(dir, "packetwalk-addon"),
		DNS:          filepath.Join(dir, "packetwalk-dns"),
		Simulated:    filepath.Join(dir, "packetwalk-simulated"),
		RealNode:     filepath.Join(dir, "realnode"),
		Calico:       filepath.Join(dir, "calico"),
		Base:         filepath.Join(dir, "base"),
	}
	for _, path := range []string{b.ControlPlane, b.Node, b.CNI, b.PortMap, b.App, b.Addon, b.DNS, b.Simulated} {
		if _, err := os.Stat(path); err != nil {
			return b, fmt.Errorf("%s is missing beside %s; 'make build controlplane' makes it", filepath.Base(path), self)
		}
	}
	return b, nil
}
