package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/beneath"
)

// hostPath finds or makes a path of the node. What containers see of the machine (app.Distribution) stands for the node's too, read-only;
// all else of the node's is below root. Links there, which pods may make, are followed within root only.
func hostPath(root string, h *corev1.HostPathVolumeSource) (volume, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return volume{}, err
	}
	path := filepath.Clean("/" + h.Path)
	found := volume{source: root, beneath: []string{"." + path}, node: path == "/"}
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	if machines, ok := distribution(path); ok && kind != corev1.HostPathFileOrCreate && kind != corev1.HostPathDirectoryOrCreate {
		found = machines
	}
	there, err := found.stat()
	switch {
	case err == nil:
		err = checkHostPath(there, h.Path, kind)
	case errors.Is(err, fs.ErrNotExist):
		err = makeHostPath(root, found.beneath[0], kind)
	}
	if err == nil && found.node {
		err = makePlaces(root)
	}
	if err != nil {
		return volume{}, fmt.Errorf("hostPath %s: %w", h.Path, err)
	}
	return found, nil
}

// makeHostPath makes what is not there, where the kind says so.
func makeHostPath(root, name string, kind corev1.HostPathType) error {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	switch kind {
	case corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate:
		return dir.MkdirAll(name, 0o755)
	case corev1.HostPathFileOrCreate:
		return makeFile(dir, name)
	}
	return fmt.Errorf("hostPath type check failed: it is not a %s", kind)
}

// makePlaces makes the places of the distribution in the node's own tree: a pod that has the whole tree may have it read-only.
func makePlaces(root string) error {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, entry := range app.Distribution {
		info, err := os.Stat(entry)
		if err != nil {
			continue
		}
		name := "." + entry
		if _, err := dir.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			continue // it is there, or a pod has put something else there, which is its own loss
		}
		if info.IsDir() {
			err = dir.MkdirAll(name, 0o755)
		} else {
			err = makeFile(dir, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func makeFile(root *os.Root, name string) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// distribution is the machine's file or directory at a path, where pods may see it; it is found beneath an entry of app.Distribution.
func distribution(path string) (volume, bool) {
	if _, _, ok := app.InDistribution(path); !ok {
		return volume{}, false
	}
	file, err := beneath.Open(path)
	if err != nil {
		return volume{}, false
	}
	defer file.Close()
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return volume{}, false
	}
	entry, rest, ok := app.InDistribution(real)
	v := volume{source: entry, readOnly: true}
	if rest != "." {
		v.beneath = []string{rest}
	}
	return v, ok
}

// checkHostPath tells whether what is at a path is of the kind that the manifest wants.
func checkHostPath(there fs.FileInfo, path string, kind corev1.HostPathType) error {
	m, ok := there.Mode(), true
	switch kind {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		ok = m.IsDir()
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		ok = m.IsRegular()
	case corev1.HostPathSocket:
		ok = m&fs.ModeSocket != 0
	case corev1.HostPathCharDev:
		ok = m&fs.ModeCharDevice != 0
	case corev1.HostPathBlockDev:
		ok = m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0
	}
	if !ok {
		return fmt.Errorf("hostPath type check failed: %s is not a %s", path, kind)
	}
	return nil
}
