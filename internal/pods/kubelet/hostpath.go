package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/beneath"
	"packetwalk.dev/internal/pods/rootfs"
)

// distributed are the parts of a node's tree that are a distribution's, with all below them: the one that containers have, read-only. All
// else is the node's own.
var distributed = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
	"/etc/localtime", "/etc/nsswitch.conf", "/etc/os-release", "/etc/protocols", "/etc/services", "/etc/ssl/certs", "/etc/timezone",
}

// hostPath finds or makes a path of the node. base is the distribution's root; what is not there of it is below root. Links there, which
// pods may make, are followed within root only.
func hostPath(root, base string, h *corev1.HostPathVolumeSource) (volume, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return volume{}, err
	}
	path := filepath.Clean("/" + h.Path)
	found := volume{source: root, beneath: []string{"." + path}}
	if path == "/" {
		found.base = base
	}
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	if of, ok := ofDistribution(base, path); ok && kind != corev1.HostPathFileOrCreate && kind != corev1.HostPathDirectoryOrCreate {
		found = of
	}
	there, err := found.stat()
	switch {
	case err == nil:
		err = checkHostPath(there, h.Path, kind)
	case errors.Is(err, fs.ErrNotExist):
		err = makeHostPath(root, found.beneath[0], kind)
	}
	if err == nil && found.base != "" {
		err = makePlaces(root, base)
	}
	if err != nil {
		return volume{}, fmt.Errorf("hostPath %s: %w", h.Path, err)
	}
	return found, nil
}

// makeNodeFiles makes those of a node's own files that pods may look for, where they are not there: a pod may have changed them.
func makeNodeFiles(root, node string) error {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.MkdirAll("."+logDir, 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"etc/hostname": node + "\n",
		"etc/hosts":    rootfs.Hosts("127.0.1.1\t" + node),
	} {
		if _, err := dir.Lstat(name); err == nil {
			continue
		}
		if err := dir.MkdirAll("etc", 0o755); err != nil {
			return err
		}
		if err := dir.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
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
func makePlaces(root, base string) error {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer dir.Close()
	for _, entry := range distributed {
		v, ok := ofDistribution(base, entry)
		if !ok {
			continue
		}
		info, err := v.stat()
		if err != nil {
			return err
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

// ofDistribution is what the distribution with the root base has at a path; links lead within base.
func ofDistribution(base, path string) (volume, bool) {
	if base == "" || !slices.ContainsFunc(distributed, func(d string) bool { return path == d || strings.HasPrefix(path, d+"/") }) {
		return volume{}, false
	}
	file, err := beneath.InRoot(base, path, unix.O_PATH)
	if err != nil {
		return volume{}, false
	}
	defer file.Close()
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return volume{}, false
	}
	rest, err := filepath.Rel(base, real)
	return volume{source: base, beneath: []string{rest}, readOnly: true}, err == nil && filepath.IsLocal(rest)
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
