package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-helpers/storage/volume"

	"packetwalk.dev/internal/testing/containertest"
)

const (
	uid  = "6cc1cbdd-3b5c-4a8e-8f0e-0f1d2c3b4a59"
	name = "pvc-" + uid
)

// claimOn returns a claim, as it is once the scheduler has chosen a node.
func claimOn(node string) *corev1.PersistentVolumeClaim {
	class := "default"
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: uid, Annotations: map[string]string{
			volume.AnnStorageProvisioner: Name, volume.AnnSelectedNode: node,
		}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
}

func newClass() *storagev1.StorageClass {
	reclaim := corev1.PersistentVolumeReclaimDelete
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Provisioner: Name, ReclaimPolicy: &reclaim}
}

func newProvisioner(t *testing.T) (p Provisioner, root string) {
	t.Helper()
	root = t.TempDir()
	return Provisioner{Path: "/var/lib/vols", Dir: func(node string) (string, string, bool) { return root, "var/vols", node == "one" }}, root
}

// await waits for what the controller does.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	eventually.Succeeds(t, 20*time.Second, func() error {
		if !is() {
			return errors.New(what)
		}
		return nil
	})
}

// TestRun shows that a claim gets a world-writable directory of its node, and that the volume belongs to no other node. After the claim has
// released the volume, the directory and its contents are gone. The targets of links in it stay. Claims and volumes of others are left
// alone.
func TestRun(t *testing.T) {
	p, root := newProvisioner(t)
	others, retained := claimOn("one"), p.object(claimOn("one"), newClass())
	others.Name, others.UID, others.Annotations[volume.AnnStorageProvisioner] = "other", types.UID("7"+uid[1:]), "disk.csi.azure.com"
	retained.Name, retained.Spec.PersistentVolumeReclaimPolicy = "pvc-8"+uid[1:], corev1.PersistentVolumeReclaimRetain
	retained.Status.Phase = corev1.VolumeReleased
	api := fake.NewClientset(newClass(), claimOn("one"), others, retained)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx, api) }()
	volumes := api.CoreV1().PersistentVolumes()
	var v *corev1.PersistentVolume
	await(t, "the volume", func() (is bool) {
		var err error
		v, err = volumes.Get(ctx, name, metav1.GetOptions{})
		return err == nil
	})
	dir := filepath.Join(root, "var/vols", name)
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("%v, %v", info, err)
	}
	if v.Spec.Local == nil || v.Spec.Local.Path != "/var/lib/vols/"+name || v.Spec.Capacity.Storage().String() != "1Gi" ||
		v.Spec.ClaimRef.UID != uid || v.Spec.StorageClassName != "default" {
		t.Errorf("%+v", v.Spec)
	}
	if node, err := nodeOf(v); err != nil || node != "one" {
		t.Errorf("it is on %q, %v", node, err)
	}
	outside := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600), os.Mkdir(filepath.Join(dir, "data"), 0o700),
		os.Symlink(outside, filepath.Join(dir, "data/link"))); err != nil {
		t.Fatal(err)
	}
	v.Status.Phase = corev1.VolumeReleased
	if _, err := volumes.Update(ctx, v, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the volume's end", func() bool {
		_, err := volumes.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory: %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
	if all, err := volumes.List(ctx, metav1.ListOptions{}); err != nil || len(all.Items) != 1 || all.Items[0].Name != retained.Name {
		t.Errorf("there are %v, %v", all.Items, err)
	}
	stop()
	<-ended
}

// TestRemoveDeep: a volume goes in which a pod has made more directories in each other than this process can have open; one that is gone
// already is no error.
func TestRemoveDeep(t *testing.T) {
	containertest.FewFiles(t)
	p, root := newProvisioner(t)
	v, err := p.make(claimOn("one"), newClass())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "var/vols", name)
	containertest.Deep(t, dir, 5000)
	for range 2 {
		if err := p.remove(v); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
}

// TestRemovePipe replaces the volumes' directory with a pipe that no process writes to, as a pod that sees the directory can. It shows that
// remove fails and does not wait for a writer.
func TestRemovePipe(t *testing.T) {
	p, root := newProvisioner(t)
	v, err := p.make(claimOn("one"), newClass())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "var/vols")
	if err := errors.Join(os.Rename(dir, dir+".away"), unix.Mkfifo(dir, 0o600)); err != nil {
		t.Fatal(err)
	}
	removed := make(chan error, 1)
	go func() { removed <- p.remove(v) }()
	select {
	case err := <-removed:
		if !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("removed: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for a writer")
	}
}

// TestFails: what cannot be made is an event on the claim, and the scheduler chooses another node where the first one has no volumes.
func TestFails(t *testing.T) {
	p, _ := newProvisioner(t)
	api := fake.NewClientset(newClass(), claimOn("virtual-node"))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx, api) }()
	await(t, "the event", func() bool {
		all, err := api.CoreV1().Events("ns").List(ctx, metav1.ListOptions{})
		return err == nil && len(all.Items) > 0 && all.Items[0].Reason == "ProvisioningFailed" && all.Items[0].InvolvedObject.Name == "data" &&
			strings.Contains(all.Items[0].Message, "virtual-node: the node has no volumes")
	})
	await(t, "the choice of another node", func() bool {
		c, err := api.CoreV1().PersistentVolumeClaims("ns").Get(ctx, "data", metav1.GetOptions{})
		_, chosen := c.Annotations[volume.AnnSelectedNode]
		return err == nil && !chosen
	})
	stop()
	<-ended
}

// TestHostile: a pod that has replaced the node's directory by a link reaches nothing of the machine's, nor does a volume of a strange
// name.
func TestHostile(t *testing.T) {
	p, root := newProvisioner(t)
	machine := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(machine, name), 0o700), os.Mkdir(filepath.Join(root, "var"), 0o755),
		os.Symlink(machine, filepath.Join(root, "var/vols"))); err != nil {
		t.Fatal(err)
	}
	if _, err := p.make(claimOn("one"), newClass()); err == nil {
		t.Error("a directory was made through the link")
	}
	v := p.object(claimOn("one"), newClass())
	if err := p.remove(v); err == nil {
		t.Error("a directory was removed through the link")
	}
	if info, err := os.Stat(filepath.Join(machine, name)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the machine's directory: %v, %v", info, err)
	}
	for _, strange := range []string{"", "..", "../" + name, name + "/..", "pvc-x"} {
		v.Name = strange
		if err := p.remove(v); err == nil || !strings.Contains(err.Error(), "not a name") {
			t.Errorf("volume %q: %v", strange, err)
		}
	}
}

// TestRefused: what a directory of one node cannot be.
func TestRefused(t *testing.T) {
	p, root := newProvisioner(t)
	block := corev1.PersistentVolumeBlock
	for want, edit := range map[string]func(*corev1.PersistentVolumeClaim){
		"ReadWriteOnce": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		},
		"volumeMode Block": func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = &block },
		"spec.selector":    func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} },
		"snapshots":        func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSource = &corev1.TypedLocalObjectReference{} },
	} {
		c := claimOn("one")
		edit(c)
		if _, err := p.make(c, newClass()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if left, _ := os.ReadDir(root); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}
