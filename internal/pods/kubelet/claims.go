package kubelet

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A claimSource finds claims and the volumes that they are bound to.
type claimSource interface {
	claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	volume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
}

func (s *Shared) claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return s.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (s *Shared) volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return s.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
}

// claimOf is the name of the claim that a volume of a pod is, which a generic ephemeral volume has of its own; "" for other volumes.
func claimOf(v *corev1.Volume, pod *corev1.Pod) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name // k8s.io/component-helpers, storage/ephemeral
	}
	return ""
}

// claimed is the volume that a claim is bound to: a directory of the node.
func (v *volumes) claimed(ctx context.Context, spec *corev1.Volume, pod *corev1.Pod) (volume, error) {
	name := claimOf(spec, pod)
	claim, err := v.claims.claim(ctx, pod.Namespace, name)
	if err != nil {
		return volume{}, err
	}
	if spec.Ephemeral != nil && !metav1.IsControlledBy(claim, pod) {
		return volume{}, fmt.Errorf("PVC %s/%s was not created for pod %s", pod.Namespace, name, pod.Name)
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return volume{}, fmt.Errorf("PVC %s/%s is not bound", pod.Namespace, name)
	}
	bound, err := v.claims.volume(ctx, claim.Spec.VolumeName)
	if err != nil {
		return volume{}, err
	}
	if ref := bound.Spec.ClaimRef; ref == nil || ref.UID != claim.UID {
		return volume{}, fmt.Errorf("PV %s is bound to another claim than %s/%s", bound.Name, pod.Namespace, name)
	}
	vol, err := v.persistent(bound, pod)
	if c := spec.PersistentVolumeClaim; c != nil && c.ReadOnly {
		vol.readOnly = true
	}
	return vol, err
}

// persistent is a PersistentVolume on the node.
func (v *volumes) persistent(pv *corev1.PersistentVolume, pod *corev1.Pod) (volume, error) {
	directory := corev1.HostPathDirectory
	switch {
	case pv.Spec.HostPath != nil:
		return hostPath(v.host, "", pv.Spec.HostPath)
	case pv.Spec.Local == nil:
		return volume{}, fmt.Errorf("PV %s: this kind of volume is not there in a lab: use StorageClass default, local or hostPath", pv.Name)
	}
	vol, err := hostPath(v.host, "", &corev1.HostPathVolumeSource{Path: pv.Spec.Local.Path, Type: &directory})
	if g := fsGroup(pod); err == nil && g != nil {
		err = vol.give(*g)
	}
	return vol, err
}

// give makes a directory, and what is made in it from now on, a group's.
func (v volume) give(group int64) error {
	dir, err := v.open()
	if err != nil {
		return err
	}
	defer dir.Close()
	path := fmt.Sprintf("/proc/self/fd/%d", dir.Fd()) // of what was opened, whatever its name leads to now
	if err := os.Chown(path, -1, int(group)); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Chmod(path, info.Mode().Perm()|0o070|os.ModeSetgid)
}
