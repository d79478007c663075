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

// hostPath finds or makes a path of the node. The node's own files are below root; where they have none, what containers see of the machine
// (app.Distribution) shows through, read-only. Links among the node's own files, which pods may make, are followed within root only.
func hostPath(root string, h *corev1.HostPathVolumeSource) (volume, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return volume{}, err
	}
	path := filepath.Clean("/" + h.Path)
	own := volume{source: root, beneath: []string{"." + path}}
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	there, err := own.stat()
	if err == nil {
		return own, checkHostPath(there, h.Path, kind)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return volume{}, fmt.Errorf("hostPath %s among the node's own files: %w", h.Path, err)
	}
	create := makeDirectory
	switch kind {
	case corev1.HostPathFileOrCreate:
		create = makeFile
	case corev1.HostPathDirectoryOrCreate:
	default:
		if machines, ok := distribution(path); ok {
			there, err := machines.stat()
			if err != nil {
				return volume{}, err
			}
			return machines, checkHostPath(there, h.Path, kind)
		}
		if kind != corev1.HostPathUnset {
			return volume{}, fmt.Errorf("hostPath type check failed: %s is not a %s", h.Path, kind)
		}
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return volume{}, err
	}
	defer dir.Close()
	return own, create(dir, own.beneath[0])
}

func makeDirectory(root *os.Root, name string) error { return root.MkdirAll(name, 0o755) }

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
