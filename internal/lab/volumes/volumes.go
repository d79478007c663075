// Package volumes makes the volumes that claims of the StorageClass default ask for: directories of the node that the scheduler chose. It
// owns the directories and the PersistentVolumes that name them.
package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"packetwalk.dev/internal/base/removetree"
)

// Name is what StorageClasses call the provisioner.
const Name = "packetwalk.dev/local"

// A Provisioner makes and removes the directories.
type Provisioner struct {
	// Path is where nodes have the directories.
	Path string
	// Dir is where this machine has a node's: in the directory below, of a root directory that containers of the node may change. ok is false
	// for a node that is no machine of the lab's.
	Dir func(node string) (root, below string, ok bool)
}

// make creates a directory for a claim that has a chosen node, and returns the volume. The directory is world-writable. Kubelet applies a
// pod's fsGroup.
func (p Provisioner) make(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (*corev1.PersistentVolume, error) {
	if err := check(c); err != nil {
		return nil, err
	}
	v := p.object(c, class)
	root, name, err := p.open(c.Annotations[volume.AnnSelectedNode], v.Name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := root.MkdirAll(name, 0o777); err != nil {
		return nil, err
	}
	return v, root.Chmod(name, 0o777) // whatever the umask is
}

// check refuses claims that a directory of one node cannot fulfil.
func check(c *corev1.PersistentVolumeClaim) error {
	many := func(m corev1.PersistentVolumeAccessMode) bool {
		return m != corev1.ReadWriteOnce && m != corev1.ReadWriteOncePod
	}
	switch {
	case slices.ContainsFunc(c.Spec.AccessModes, many):
		return errors.New("a volume is a directory of one node: there are the access modes ReadWriteOnce and ReadWriteOncePod")
	case c.Spec.VolumeMode != nil && *c.Spec.VolumeMode != corev1.PersistentVolumeFilesystem:
		return fmt.Errorf("a volume is a directory of a node: there is no volumeMode %s", *c.Spec.VolumeMode)
	case c.Spec.Selector != nil:
		return errors.New("spec.selector is for volumes that are there already")
	case c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil:
		return errors.New("a volume is made empty: there are no snapshots and clones")
	}
	return nil
}

// object returns the volume as the API has it. Its size is the requested one, which nothing enforces.
func (p Provisioner) object(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *corev1.PersistentVolume {
	name, mode, node := "pvc-"+string(c.UID), corev1.PersistentVolumeFilesystem, c.Annotations[volume.AnnSelectedNode]
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{volume.AnnDynamicallyProvisioned: Name}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class.Name, PersistentVolumeReclaimPolicy: *class.ReclaimPolicy, MountOptions: class.MountOptions,
			AccessModes: c.Spec.AccessModes, VolumeMode: &mode,
			Capacity: corev1.ResourceList{corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage]},
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: filepath.Join(p.Path, name)}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
				},
			}}}},
		},
	}
}

// remove removes a volume's directory. One of a node that is gone went with it.
func (p Provisioner) remove(v *corev1.PersistentVolume) error {
	node, err := nodeOf(v)
	if err != nil {
		return err
	}
	root, name, err := p.open(node, v.Name)
	if errors.Is(err, errNoNode) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	dir, err := root.OpenFile(filepath.Dir(name), unix.O_DIRECTORY|unix.O_NONBLOCK, 0) // a pod may have put a pipe in its place
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return removetree.RemoveIn(dir, filepath.Base(name))
}

// nodeOf returns the node whose directory a volume is.
func nodeOf(v *corev1.PersistentVolume) (string, error) {
	if a := v.Spec.NodeAffinity; a != nil && a.Required != nil {
		for _, term := range a.Required.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				if e.Key == corev1.LabelHostname && len(e.Values) == 1 {
					return e.Values[0], nil
				}
			}
		}
	}
	return "", fmt.Errorf("volume %s: its node affinity names no node", v.Name)
}

// volumeName is what volumes are called: by the claim's UID.
var volumeName = regexp.MustCompile(`^pvc-[0-9a-f-]{36}$`)

// errNoNode says that a node is no machine of the lab's.
var errNoNode = errors.New("the node has no volumes")

// open opens the root of a node's directories, with the path of a volume in it.
func (p Provisioner) open(node, of string) (root *os.Root, name string, err error) {
	if !volumeName.MatchString(of) {
		return nil, "", fmt.Errorf("volume %q: not a name of one of this provisioner", of)
	}
	dir, below, ok := p.Dir(node)
	if !ok {
		return nil, "", fmt.Errorf("%s: %w", node, errNoNode)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, "", err
	}
	root, err = os.OpenRoot(dir)
	return root, filepath.Join(below, of), err
}
