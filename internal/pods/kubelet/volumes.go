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

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/beneath"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/kubelet/expansion"
)

// A volume is one of a pod's, set up: a directory or file of the machine. Containers mount it as container.Mount says.
type volume struct {
	source   string
	beneath  []string
	readOnly bool
	node     bool // the node's own tree, all of it: app.Distribution is mounted in it
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

type file = beneath.File

// A tokenSource makes service account tokens.
type tokenSource interface {
	token(ctx context.Context, pod *corev1.Pod, audience string, lifetime time.Duration) (*authv1.TokenRequestStatus, error)
}

// A volumes sets up a pod's volumes below dir.
type volumes struct {
	dir  string // pods/<uid>/volumes
	host string // the root of the node's own files, for hostPath
	src  configSource
	tok  tokenSource
	now  func() time.Time
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
		if !renew.IsZero() && (refresh.IsZero() || renew.Before(refresh)) {
			refresh = renew
		}
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
		return vol, refresh, emptyDir(vol.source, f.pod)
	case spec.HostPath != nil:
		vol, err = hostPath(v.host, spec.HostPath)
		return vol, refresh, err
	}
	plugin, files, refresh, err := v.files(ctx, spec, f)
	if err != nil {
		return vol, refresh, err
	}
	vol = volume{source: v.path(plugin, spec.Name), readOnly: true}
	return vol, refresh, errors.Join(beneath.WriteFiles(vol.source, files, fsGroup(f.pod)), makeMountPoints(vol.source, spec.Name, f.pod))
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
func (v *volumes) files(ctx context.Context, spec *corev1.Volume, f podFacts) (plugin string, files []file, refresh time.Time, err error) {
	switch {
	case spec.ConfigMap != nil:
		s := spec.ConfigMap
		files, err = configMapFiles(v.src, f.pod.Namespace, s.Name, s.Items, mode(s.DefaultMode), isTrue(s.Optional))
		return "configmap", files, refresh, err
	case spec.Secret != nil:
		s := spec.Secret
		files, err = secretFiles(v.src, f.pod.Namespace, s.SecretName, s.Items, mode(s.DefaultMode), isTrue(s.Optional))
		return "secret", files, refresh, err
	case spec.DownwardAPI != nil:
		files, err = downwardFiles(spec.DownwardAPI.Items, mode(spec.DownwardAPI.DefaultMode), f)
		return "downward-api", files, refresh, err
	case spec.Projected != nil:
		for _, s := range spec.Projected.Sources {
			more, renew, err := v.projection(ctx, s, mode(spec.Projected.DefaultMode), f)
			if err != nil {
				return "", nil, refresh, err
			}
			files = append(files, more...)
			if !renew.IsZero() && (refresh.IsZero() || renew.Before(refresh)) {
				refresh = renew
			}
		}
		return "projected", files, refresh, nil
	}
	return "", nil, refresh, errors.New("this kind of volume is not there in a lab: " +
		"use configMap, secret, downwardAPI, projected, emptyDir or hostPath")
}

func (v *volumes) projection(
	ctx context.Context, s corev1.VolumeProjection, m os.FileMode, f podFacts,
) (files []file, refresh time.Time, err error) {
	ns := f.pod.Namespace
	switch {
	case s.ConfigMap != nil:
		files, err = configMapFiles(v.src, ns, s.ConfigMap.Name, s.ConfigMap.Items, m, isTrue(s.ConfigMap.Optional))
	case s.Secret != nil:
		files, err = secretFiles(v.src, ns, s.Secret.Name, s.Secret.Items, m, isTrue(s.Secret.Optional))
	case s.DownwardAPI != nil:
		files, err = downwardFiles(s.DownwardAPI.Items, m, f)
	case s.ServiceAccountToken != nil:
		t := s.ServiceAccountToken
		life := time.Hour
		if t.ExpirationSeconds != nil {
			life = time.Duration(*t.ExpirationSeconds) * time.Second
		}
		var status *authv1.TokenRequestStatus
		if status, err = v.tok.token(ctx, f.pod, t.Audience, life); err != nil {
			return nil, refresh, fmt.Errorf("failed to fetch token: %w", err)
		}
		// Upstream renews at 80 % of the life (pkg/kubelet/token).
		now := v.now()
		refresh = now.Add(status.ExpirationTimestamp.Sub(now) * 8 / 10)
		files = []file{{Name: t.Path, Data: []byte(status.Token), Mode: m}}
	default:
		err = errors.New("this source of a projected volume is not there in a lab")
	}
	return files, refresh, err
}

func mode(m *int32) os.FileMode {
	if m == nil {
		return 0o644
	}
	return os.FileMode(*m).Perm()
}

func configMapFiles(src configSource, namespace, name string, items []corev1.KeyToPath, m os.FileMode, optional bool) ([]file, error) {
	cm, err := src.configMap(namespace, name)
	if err != nil {
		if optional {
			return nil, nil
		}
		return nil, err
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, b := range cm.BinaryData {
		data[k] = b
	}
	for k, s := range cm.Data {
		data[k] = []byte(s)
	}
	return pick(data, items, m, optional)
}

func secretFiles(src configSource, namespace, name string, items []corev1.KeyToPath, m os.FileMode, optional bool) ([]file, error) {
	s, err := src.secret(namespace, name)
	if err != nil {
		if optional {
			return nil, nil
		}
		return nil, err
	}
	return pick(s.Data, items, m, optional)
}

// pick chooses the keys that a volume shows: all of them, or the items.
func pick(data map[string][]byte, items []corev1.KeyToPath, m os.FileMode, optional bool) (files []file, err error) {
	if len(items) == 0 {
		for k, b := range data {
			files = append(files, file{Name: k, Data: b, Mode: m})
		}
		return files, nil
	}
	for _, it := range items {
		b, ok := data[it.Key]
		if !ok && optional {
			continue
		}
		if !ok {
			return nil, fmt.Errorf("references non-existent config key: %s", it.Key)
		}
		fm := m
		if it.Mode != nil {
			fm = mode(it.Mode)
		}
		files = append(files, file{Name: it.Path, Data: b, Mode: fm})
	}
	return files, nil
}

func downwardFiles(items []corev1.DownwardAPIVolumeFile, m os.FileMode, f podFacts) (files []file, err error) {
	for _, it := range items {
		var value string
		switch {
		case it.FieldRef != nil:
			value, err = fieldValue(it.FieldRef.FieldPath, f)
		case it.ResourceFieldRef != nil:
			c := findContainer(f.pod, it.ResourceFieldRef.ContainerName)
			if c == nil {
				return nil, fmt.Errorf("container %s not found", it.ResourceFieldRef.ContainerName)
			}
			value, err = resourceValue(it.ResourceFieldRef, c, f.allocatable)
		}
		if err != nil {
			return nil, err
		}
		fm := m
		if it.Mode != nil {
			fm = mode(it.Mode)
		}
		files = append(files, file{Name: it.Path, Data: []byte(value), Mode: fm})
	}
	return files, nil
}

func fsGroup(pod *corev1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

func emptyDir(path string, pod *corev1.Pod) error {
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	perm := os.FileMode(0o777)
	if g := fsGroup(pod); g != nil {
		perm |= os.ModeSetgid
		if err := os.Chown(path, -1, int(*g)); err != nil {
			return err
		}
	}
	return os.Chmod(path, perm) // whatever the umask
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
			sub = expansion.Expand(vm.SubPathExpr, vars)
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
		for _, entry := range app.Distribution {
			if _, err := os.Stat(entry); v.node && err == nil {
				list = append(list, container.Mount{Source: entry, Destination: filepath.Join(vm.MountPath, entry), ReadOnly: true})
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

// references tells whether the pod uses the ConfigMap or Secret, in a volume or in a variable.
func references(pod *corev1.Pod, kind, name string) bool {
	for i := range pod.Spec.Volumes {
		if volumeReferences(&pod.Spec.Volumes[i], kind, name) {
			return true
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if envReferences(&c, kind, name) {
			return true
		}
	}
	return false
}

func volumeReferences(v *corev1.Volume, kind, name string) bool {
	switch {
	case v.ConfigMap != nil:
		return kind == "ConfigMap" && v.ConfigMap.Name == name
	case v.Secret != nil:
		return kind == "Secret" && v.Secret.SecretName == name
	case v.Projected != nil:
		return slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return kind == "ConfigMap" && s.ConfigMap != nil && s.ConfigMap.Name == name ||
				kind == "Secret" && s.Secret != nil && s.Secret.Name == name
		})
	}
	return false
}

func envReferences(c *corev1.Container, kind, name string) bool {
	return slices.ContainsFunc(c.EnvFrom, func(e corev1.EnvFromSource) bool {
		return kind == "ConfigMap" && e.ConfigMapRef != nil && e.ConfigMapRef.Name == name ||
			kind == "Secret" && e.SecretRef != nil && e.SecretRef.Name == name
	}) || slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		f := e.ValueFrom
		return f != nil && (kind == "ConfigMap" && f.ConfigMapKeyRef != nil && f.ConfigMapKeyRef.Name == name ||
			kind == "Secret" && f.SecretKeyRef != nil && f.SecretKeyRef.Name == name)
	})
}
