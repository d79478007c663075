package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/sysctl"
)

// stateVersion is the format of the state file that this code reads and writes.
const stateVersion = 1

// state is what a network's state file holds (JSON, one file a network, written whole and renamed into place).
type state struct {
	Version int `json:"version"`
	// Incarnation names the node's network namespace in this run of the kernel: another one means that the node started anew and that no link
	// of the old one exists.
	Incarnation string `json:"incarnation"`
	// NodeReady says that what the pods share (bridge, rules, sysctls) was set up completely.
	NodeReady   bool         `json:"nodeReady"`
	Attachments []attachment `json:"attachments"`
	// Released are the addresses given back, oldest first.
	Released []netip.Addr `json:"released,omitempty"`
}

// attachment is a pod's interface on a network.
type attachment struct {
	ContainerID  string     `json:"containerID"` // empty when it was rebuilt from the kernel
	IfName       string     `json:"ifname"`
	Netns        string     `json:"netns"`
	PodNamespace string     `json:"podNamespace,omitempty"`
	PodName      string     `json:"podName,omitempty"`
	HostIf       string     `json:"hostInterface"`
	MAC          string     `json:"mac"` // the pod's interface
	Address      netip.Addr `json:"address"`
	// Pending: an ADD began and has not ended. Whoever holds the attachment's lock and finds one knows that its maker died, and takes it back.
	Pending bool `json:"pending,omitempty"`
}

// owner names the attachment's holder for people.
func (a *attachment) owner() string {
	switch {
	case a.PodName != "":
		return a.PodNamespace + "/" + a.PodName
	case a.ContainerID != "":
		return "container " + a.ContainerID
	}
	return "interface " + a.HostIf
}

// find returns the attachment of a container's interface; one that was rebuilt is known by its host interface only.
func (s *state) find(containerID, ifName, hostIf string) *attachment {
	for i := range s.Attachments {
		if a := &s.Attachments[i]; a.is(containerID, ifName, hostIf) {
			return a
		}
	}
	return nil
}

func (a *attachment) is(containerID, ifName, hostIf string) bool {
	return a.ContainerID == containerID && a.IfName == ifName || a.ContainerID == "" && a.HostIf == hostIf
}

func (s *state) add(a attachment) {
	s.Released = slices.DeleteFunc(s.Released, func(r netip.Addr) bool { return r == a.Address })
	s.Attachments = append(s.Attachments, a)
	slices.SortFunc(s.Attachments, func(a, b attachment) int { return a.Address.Compare(b.Address) })
}

// forget removes an attachment. known says that peers may know its address; forget then puts it at the end of the queue.
func (s *state) forget(a attachment, known bool) {
	s.Attachments = slices.DeleteFunc(s.Attachments, func(x attachment) bool { return x.Address == a.Address })
	s.Released = slices.DeleteFunc(s.Released, func(r netip.Addr) bool { return r == a.Address })
	if known {
		s.Released = append(s.Released, a.Address)
	}
}

// store is a network's state file.
type store struct {
	path string
	locks
	// found says that the file was there and could be read.
	found bool
	state // as it was read last
}

func newStore(dir, network string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, coded(types.ErrIOFailure, fmt.Errorf("make the state folder: %w", err))
	}
	return &store{path: filepath.Join(dir, network+".json"), locks: newLocks(dir, network)}, nil
}

// read loads the file. One that is missing or damaged (a power cut) is as none: the kernel is asked what there is.
func (s *store) read() error {
	s.state, s.found = state{}, false
	data, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return coded(types.ErrIOFailure, fmt.Errorf("read the state: %w", err))
	}
	state, ok := parseState(data)
	if !ok {
		return nil
	}
	if state.Version > stateVersion {
		return coded(types.ErrIOFailure, fmt.Errorf("read the state: %s has format %d, this plugin knows %d; install the plugin that wrote it",
			s.path, state.Version, stateVersion))
	}
	s.state, s.found = state, true
	return nil
}

func parseState(data []byte) (state state, ok bool) {
	err := json.Unmarshal(data, &state)
	return state, err == nil
}

// save writes the file whole and renames it into place.
func (s *store) save() error {
	s.Version = stateVersion
	data, err := json.Marshal(s.state)
	if err != nil {
		return coded(types.ErrInternal, fmt.Errorf("encode the state: %w", err))
	}
	if err := atomicfile.Write(s.path, append(data, '\n'), 0o600); err != nil {
		return coded(types.ErrIOFailure, fmt.Errorf("write the state: %w", err))
	}
	return nil
}

// incarnation names the network namespace that the process is in, uniquely over reboots and over namespaces made at the same path: the
// kernel's boot id and the namespace's cookie (SO_NETNS_COOKIE, Linux 5.14), or its inode number before.
func incarnation() (string, error) {
	id, err := sysctl.Read("kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	if cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil {
		return id + " netns " + strconv.FormatUint(cookie, 10), nil
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return "", fmt.Errorf("stat the network namespace: %w", err)
	}
	return id + " inode " + strconv.FormatUint(st.Ino, 10), nil
}
