package kubelet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/testing/kerneltest"
)

// boundTo is an API with one claim, and the volume that it is bound to.
type boundTo struct {
	of *corev1.PersistentVolumeClaim
	to *corev1.PersistentVolume
}

func (b boundTo) claim(context.Context, string, string) (*corev1.PersistentVolumeClaim, error) {
	return b.of, nil
}
func (b boundTo) volume(context.Context, string) (*corev1.PersistentVolume, error) { return b.to, nil }

// newClaim is a claim of a pod that is bound to a directory of the node.
func newClaim() (*corev1.Pod, boundTo) {
	pod := testPod("web", func(p *corev1.Pod) {
		p.UID = "pod"
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	})
	return pod, boundTo{
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data", UID: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{UID: "claim"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/vols/pv"}},
		}},
	}
}

// TestClaims: a claim's volume is the node's directory that its PersistentVolume names, if that is bound to it; another pod's ephemeral
// claim, and what leads out of the node, is none.
func TestClaims(t *testing.T) {
	for _, test := range []struct {
		name string
		edit func(*corev1.Pod, boundTo)
		want string // of the error
	}{
		{"bound", func(*corev1.Pod, boundTo) {}, ""},
		{"not bound yet", func(_ *corev1.Pod, b boundTo) { b.of.Status.Phase = corev1.ClaimPending }, "is not bound"},
		{"bound to another claim", func(_ *corev1.Pod, b boundTo) { b.to.Spec.ClaimRef.UID = "other" }, "bound to another claim"},
		{"of another kind", func(_ *corev1.Pod, b boundTo) { b.to.Spec.Local = nil }, "this kind of volume"},
		{"without its directory", func(_ *corev1.Pod, b boundTo) { b.to.Spec.Local.Path = "/vols/gone" }, "is not a Directory"},
		{"by a link that leads out", func(_ *corev1.Pod, b boundTo) { b.to.Spec.Local.Path = "/vols/out" }, "leads out"},
		{"another pod's ephemeral one", func(p *corev1.Pod, _ boundTo) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
		}, "was not created for pod web"},
		{"an ephemeral one", func(p *corev1.Pod, b boundTo) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
			b.of.OwnerReferences = []metav1.OwnerReference{{UID: "pod", Controller: new(true)}}
		}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "rootfs")
			if err := os.MkdirAll(filepath.Join(root, "vols/pv"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(t.TempDir(), filepath.Join(root, "vols/out")); err != nil {
				t.Fatal(err)
			}
			pod, bound := newClaim()
			test.edit(pod, bound)
			made, _, err := (&volumes{dir: t.TempDir(), host: root, claims: bound}).setup(t.Context(), podFacts{pod: pod})
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := made["v"].open(); err != nil || made["v"].readOnly {
				t.Errorf("%+v, %v", made["v"], err)
			} else if path, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", got.Fd())); path != filepath.Join(root, "vols/pv") {
				t.Errorf("it is %s", path)
			}
		})
	}
}

// TestClaimOfGroup: a pod's fsGroup may write to its volume, and has what is made there.
func TestClaimOfGroup(t *testing.T) {
	kerneltest.NeedRoot(t)
	root := filepath.Join(t.TempDir(), "rootfs")
	dir := filepath.Join(root, "vols/pv")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	pod, bound := newClaim()
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(1234))}
	pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	made, _, err := (&volumes{dir: t.TempDir(), host: root, claims: bound}).setup(t.Context(), podFacts{pod: pod})
	if err != nil || !made["v"].readOnly {
		t.Fatal(made, err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Sys().(*syscall.Stat_t).Gid != 1234 || info.Mode() != os.ModeDir|os.ModeSetgid|0o775 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
