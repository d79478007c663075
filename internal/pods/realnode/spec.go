package realnode

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/pods/cgroup"
)

// A Spec says what a node's first process makes of fresh namespaces; as JSON in the file that it is given.
type Spec struct {
	Hostname string `json:"hostname"`
	// State is a directory of the machine, on a file system that overlayfs can write to: what the node's root holds beyond its layers, across
	// restarts of the node.
	State string `json:"state"`
	// Lower are the directories of the machine whose files the node's root has, the first one's above the others', below a writable layer.
	Lower []string `json:"lower"`
	// Binds are directories of the machine that are the node's.
	Binds []Bind `json:"binds"`
	// Cgroup is the node's control group, below the root of each hierarchy.
	Cgroup string `json:"cgroup"`
	// Bounds are what the group may use, with all that runs on the node.
	Bounds cgroup.Limits `json:"bounds"`
	// Runtime is kept running, and Agent from when the runtime answers on its socket.
	Runtime Program `json:"runtime"`
	Agent   Program `json:"agent"`
}

// A Bind is a directory of the machine at a path of the node. Root on the node can do with it what it likes.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// A Program is one that a node keeps running; paths are the node's.
type Program struct {
	Name string   `json:"name"`
	Path string   `json:"path"`
	Args []string `json:"args"` // without the program's name
	Log  string   `json:"log"`  // standard output and error
	// Socket is where it serves gRPC; one that does not answer there is started again. Empty for one that does not serve.
	Socket string `json:"socket,omitempty"`
}

// maxSpec is the most that a spec's file may hold, bytes.
const maxSpec = 1 << 20

// ReadSpec reads a spec's file.
func ReadSpec(path string) (s Spec, err error) {
	text, err := limitio.ReadFile(path, maxSpec)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Upper returns the root's writable layer, Work what overlayfs needs beside it, and Root where it is mounted on its way to be one.
func (s *Spec) Upper() string { return filepath.Join(s.State, "upper") }

// Work returns a directory for overlayfs itself.
func (s *Spec) Work() string { return filepath.Join(s.State, "work") }

// Root returns a mount point of the node's mount namespace.
func (s *Spec) Root() string { return filepath.Join(s.State, "root") }
