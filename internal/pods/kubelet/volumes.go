package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/beneath"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/podspec"
)

// A volume is one of a pod's, set up: a directory or file of the machine. Containers mount it as container.Mount says.
type volume struct {
	source   string
	beneath  []string
	readOnly bool
	base     string // of the node's own tree, all of it: the root of the distribution whose parts are mounted in it
}

func (v volume) open() (*os.File, error) { return beneath.Open(v.source, v.beneath...) }

func (v volume) stat() (os.FileInfo, error) {
	f, err := v.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

// A tokenSource makes service account tokens.
type tokenSource interface {
	token(ctx context.Context, pod *corev1.Pod, audience string, lifetime time.Duration) (*authv1.TokenRequestStatus, error)
}

// A volumes sets up a pod's volumes below dir.
type volumes struct {
	dir  string // pods/<uid>/volumes
	host string // the root of the node's own files, for hostPath
	base func(context.Context) (dir string, err error)
	src  configSource
	tok  tokenSource
	now  func() time.Time
	// memory mounts a file system in memory, of so many bytes, at a directory that may be one already.
	memory func(dir string, size int64) error

	claims claimSource
}

// setup makes every volume of the pod, or brings those up to date that are there. refresh is when a token among them should be renewed,
// zero for never.
func (v *volumes) setup(ctx context.Context, f podFacts) (made map[string]volume, refresh time.Time, err error) {
	made = make(map[string]volume, len(f.pod.Spec.Volumes))
	for i := range f.pod.Spec.Volumes {
		spec := &f.pod.Spec.Volumes[i]
		vol, renew, err := v.one(ctx, spec, f)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", spec.Name, err)
		}
		made[spec.Name] = vol
		refresh = earlier(refresh, renew)
	}
	return made, refresh, nil
}

// The directory names are upstream's plugin names.
func (v *volumes) path(plugin, name string) string {
	return filepath.Join(v.dir, "kubernetes.io~"+plugin, name)
}

func (v *volumes) one(ctx context.Context, spec *corev1.Volume, f podFacts) (vol volume, refresh time.Time, err error) {
	switch {
	case spec.EmptyDir != nil:
		vol.source = v.path("empty-dir", spec.Name)
		return vol, refresh, v.emptyDir(vol.source, spec.EmptyDir, f)
	case spec.HostPath != nil:
		base, err := v.base(ctx)
		if err == nil {
			vol, err = hostPath(v.host, base, spec.HostPath)
		}
		return vol, refresh, err
	case claimOf(spec, f.pod) != "":
		vol, err := v.claimed(ctx, spec, f.pod)
		return vol, refresh, err
	}
	vol = volume{source: v.path(pluginOf(spec), spec.Name), readOnly: true}
	files, refresh, err := v.files(ctx, spec, f)
	if err != nil {
		return vol, refresh, err
	}
	return vol, refresh, errors.Join(beneath.WriteFiles(vol.source, files, fsGroup(f.pod)), makeMountPoints(vol.source, spec.Name, f.pod))
}

// pluginOf is upstream's name of what makes a volume of files.
func pluginOf(v *corev1.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return "configmap"
	case v.Secret != nil:
		return "secret"
	case v.DownwardAPI != nil:
		return "downward-api"
	}
	return "projected"
}

// makeMountPoints makes the directories at which other volumes are mounted in this one, which is read-only in the containers.
func makeMountPoints(dir, name string, pod *corev1.Pod) error {
	var errs []error
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, outer := range c.VolumeMounts {
			if outer.Name != name || outer.SubPath != "" || outer.SubPathExpr != "" {
				continue
			}
			for _, inner := range c.VolumeMounts {
				if inner.SubPath == "" && inner.SubPathExpr == "" {
					errs = append(errs, beneath.MakeMountPoint(dir, outer.MountPath, inner.MountPath))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// files is what a volume made of files holds.
func (v *volumes) files(ctx context.Context, spec *corev1.Volume, f podFacts) (files []beneath.File, refresh time.Time, err error) {
	files, err = podspec.Sources{
		Object: func(o podspec.Object) (map[string][]byte, error) { return v.src.data(f.pod.Namespace, o, true) },
		Field:  f.item,
		Token: func(t *corev1.ServiceAccountTokenProjection) (string, error) {
			life := time.Hour
			if t.ExpirationSeconds != nil {
				life = time.Duration(*t.ExpirationSeconds) * time.Second
			}
			status, err := v.tok.token(ctx, f.pod, t.Audience, life)
			if err != nil {
				return "", err
			}
			// Upstream renews at 80 % of the life (pkg/kubelet/token).
			now := v.now()
			refresh = earlier(refresh, now.Add(status.ExpirationTimestamp.Sub(now)*8/10))
			return status.Token, nil
		},
	}.Files(spec)
	return files, refresh, err
}

// item is what a file of the downward API holds.
func (f podFacts) item(it corev1.DownwardAPIVolumeFile) (string, error) {
	switch {
	case it.FieldRef != nil:
		return fieldValue(it.FieldRef.FieldPath, f)
	case it.ResourceFieldRef != nil:
		c := findContainer(f.pod, it.ResourceFieldRef.ContainerName)
		if c == nil {
			return "", fmt.Errorf("container %s not found", it.ResourceFieldRef.ContainerName)
		}
		return resourceValue(it.ResourceFieldRef, c, f.allocatable)
	}
	return "", nil
}

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

func (v *volumes) emptyDir(path string, spec *corev1.EmptyDirVolumeSource, f podFacts) error {
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	if spec.Medium == corev1.StorageMediumMemory {
		if err := v.memory(path, memorySize(spec, f)); err != nil {
			return fmt.Errorf("mount memory: %w", err)
		}
	}
	pod := f.pod
	perm := os.FileMode(0o777)
	if g := fsGroup(pod); g != nil {
		perm |= os.ModeSetgid
		if err := os.Chown(path, -1, int(*g)); err != nil {
			return err
		}
	}
	return os.Chmod(path, perm) // whatever the umask
}

// memorySize is the least of the volume's limit, the pod's and the node's memory, as upstream has it (pkg/volume/emptydir).
func memorySize(spec *corev1.EmptyDirVolumeSource, f podFacts) int64 {
	size, pod := f.allocatable.Memory().Value(), int64(0)
	for _, c := range f.pod.Spec.Containers {
		if c.Resources.Limits.Memory().IsZero() { // which is no limit of the pod's either
			pod = size
		}
		pod += c.Resources.Limits.Memory().Value()
	}
	size = min(size, pod)
	if l := spec.SizeLimit; l != nil && !l.IsZero() {
		size = min(size, l.Value())
	}
	return size
}

// mountMemory makes a directory a file system in memory, once.
func mountMemory(dir string, size int64) error {
	var here, above unix.Stat_t
	if err := errors.Join(unix.Lstat(dir, &here), unix.Lstat(filepath.Dir(dir), &above)); err != nil || here.Dev != above.Dev {
		return err
	}
	return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d", size))
}

// unmountVolumes takes away what was mounted for a pod's volumes.
func (w *worker) unmountVolumes() error {
	var errs []error
	v := volumes{dir: w.volumesDir()}
	for _, vol := range w.pod().Spec.Volumes {
		if vol.EmptyDir == nil || vol.EmptyDir.Medium != corev1.StorageMediumMemory {
			continue
		}
		err := unix.Unmount(v.path("empty-dir", vol.Name), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) { // it is none, or was never made
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// mounts gives a container's mounts of the pod's volumes. vars are for subPathExpr.
func mounts(c *corev1.Container, vols map[string]volume, vars map[string]string) ([]container.Mount, error) {
	list := make([]container.Mount, 0, len(c.VolumeMounts))
	for _, vm := range c.VolumeMounts {
		v, ok := vols[vm.Name]
		if !ok {
			return nil, fmt.Errorf("volume %q is not one of the pod's", vm.Name)
		}
		sub := vm.SubPath
		if vm.SubPathExpr != "" {
			sub = podspec.Expand(vm.SubPathExpr, vars)
		}
		if sub != "" {
			var err error
			if v, err = v.subPath(sub); err != nil {
				return nil, fmt.Errorf("subPath %q of volume %q: %w", sub, vm.Name, err)
			}
		}
		list = append(list, container.Mount{
			Source: v.source, Beneath: v.beneath, Destination: vm.MountPath, ReadOnly: vm.ReadOnly || v.readOnly,
		})
		for _, entry := range distributed {
			if d, ok := ofDistribution(v.base, entry); ok {
				list = append(list, container.Mount{Source: d.source, Beneath: d.beneath, Destination: filepath.Join(vm.MountPath, entry),
					ReadOnly: true})
			}
		}
	}
	return list, nil
}

// subPath is the file or directory of the volume that a subPath names, made where it is not there. Links, which a pod may have made, are
// followed within the volume only. A mount of a link is of what it leads to; a later change of the volume is not seen, as upstream.
func (v volume) subPath(sub string) (volume, error) {
	if !filepath.IsLocal(sub) {
		return volume{}, errors.New("it leaves the volume")
	}
	if part, ok := ofDistribution(v.base, filepath.Join("/", sub)); ok {
		return part, nil
	}
	inner := volume{source: v.source, beneath: append(slices.Clone(v.beneath), sub), readOnly: v.readOnly}
	_, err := inner.stat()
	if !errors.Is(err, fs.ErrNotExist) || v.readOnly {
		return inner, err
	}
	outer, err := v.open()
	if err != nil {
		return volume{}, err
	}
	defer outer.Close()
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", outer.Fd()))
	if err != nil {
		return volume{}, err
	}
	defer root.Close()
	return inner, root.MkdirAll(sub, 0o777)
}
