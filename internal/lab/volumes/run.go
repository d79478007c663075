package volumes

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-helpers/storage/volume"
)

// A key names a claim, or a volume, which has no namespace.
type key = cache.ObjectName

// A controller does what claims and volumes ask for, one after the other, and again, later and later, what it could not do.
type controller struct {
	Provisioner
	client kubernetes.Interface
	events record.EventRecorder
	queue  workqueue.TypedRateLimitingInterface[key]
	claims func(key) (any, bool, error)
	all    func(key) (any, bool, error) // volumes
}

// Run makes the volumes that claims ask for, and removes those that no claim has any more, until ctx ends.
func (p Provisioner) Run(ctx context.Context, client kubernetes.Interface) error {
	broadcast := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcast.Shutdown()
	broadcast.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	factory := informers.NewSharedInformerFactory(client, 0)
	defer factory.Shutdown()
	core := factory.Core().V1()
	c := controller{
		Provisioner: p, client: client, events: broadcast.NewRecorder(scheme.Scheme, corev1.EventSource{Component: Name}),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[key]()),
	}
	var err error
	if c.claims, err = c.watch(core.PersistentVolumeClaims().Informer()); err != nil {
		return err
	}
	if c.all, err = c.watch(core.PersistentVolumes().Informer()); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	context.AfterFunc(ctx, c.queue.ShutDown)
	factory.Start(ctx.Done())
	for {
		next, over := c.queue.Get()
		if over {
			return ctx.Err()
		}
		if c.sync(ctx, next) {
			c.queue.Forget(next)
		} else {
			c.queue.AddRateLimited(next)
		}
		c.queue.Done(next)
	}
}

// watch has an informer's objects queued, and gives them by their names.
func (c *controller) watch(informer cache.SharedIndexInformer) (func(key) (any, bool, error), error) {
	add := func(o any) {
		if name, err := cache.ObjectToName(o); err == nil {
			c.queue.Add(name)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }})
	return func(k key) (any, bool, error) { return informer.GetStore().GetByKey(k.String()) }, err
}

// sync does what an object asks for; false if it could not, which is an event on the object.
func (c *controller) sync(ctx context.Context, k key) bool {
	find, reason := c.claims, "ProvisioningFailed"
	if k.Namespace == "" {
		find, reason = c.all, "VolumeFailedDelete"
	}
	o, there, err := find(k)
	if err != nil || !there {
		return err == nil
	}
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		err = c.provision(ctx, o)
	case *corev1.PersistentVolume:
		err = c.reclaim(ctx, o)
	}
	if err != nil && ctx.Err() == nil {
		c.events.Event(o.(runtime.Object), corev1.EventTypeWarning, reason, err.Error())
	}
	return err == nil
}

// provision makes the volume that a claim asks this provisioner for, once the scheduler has chosen a node. The claim's UID is its name, so
// that it is made once.
func (c *controller) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.Annotations[volume.AnnStorageProvisioner] != Name || claim.Annotations[volume.AnnSelectedNode] == "" ||
		claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil || claim.Spec.StorageClassName == nil {
		return nil
	}
	class, err := c.client.StorageV1().StorageClasses().Get(ctx, *claim.Spec.StorageClassName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	v, err := c.make(claim, class)
	if errors.Is(err, errNoNode) {
		return errors.Join(err, c.unselect(ctx, claim))
	}
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// unselect has the scheduler choose another node for a claim: only the provisioner can.
func (c *controller) unselect(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	const patch = `{"metadata":{"annotations":{"` + volume.AnnSelectedNode + `":null}}}`
	_, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	return err
}

// reclaim removes a volume of this provisioner that its claim has let go of.
func (c *controller) reclaim(ctx context.Context, v *corev1.PersistentVolume) error {
	if v.Annotations[volume.AnnDynamicallyProvisioned] != Name || v.Status.Phase != corev1.VolumeReleased ||
		v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return nil
	}
	if err := c.remove(v); err != nil {
		return err
	}
	err := c.client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &v.UID}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
