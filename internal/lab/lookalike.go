package lab

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/google/go-containerregistry/pkg/name"

	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/source"
)

// nodeImages are the library for one real node: where an image cannot be had, what stands for it, which the pods' events say.
type nodeImages struct {
	*library
	node   string
	client kubernetes.Interface
	told   sync.Map // pods, by UID and image
}

// Manifest is the registry's.
func (n *nodeImages) Manifest(ctx context.Context, ref string) (images.Manifest, error) {
	found, err := n.finder().Find(ctx, source.Request{Ref: ref})
	if err != nil {
		return images.Manifest{}, err
	}
	if found.LookAlike != "" {
		n.tell(ctx, ref, found.LookAlike)
	}
	return found.Store.Manifest(found.Ref)
}

// tell says in the events of the node's pods with an image what stands for it. One that cannot be told is no reason not to run it.
func (n *nodeImages) tell(ctx context.Context, ref, text string) {
	pods, err := n.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.node).String(), ResourceVersion: "0"})
	if err != nil {
		n.log.Warn("pods are not told what stands for an image", "image", ref, "err", err)
		return
	}
	for _, p := range pods.Items {
		if _, told := n.told.LoadOrStore(string(p.UID)+" "+ref, true); told || !hasImage(&p, ref) {
			continue
		}
		now := metav1.Now()
		_, err := n.client.CoreV1().Events(p.Namespace).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: p.Name + ".", Namespace: p.Namespace},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
			Reason:         "LookAlike", Message: text, Type: corev1.EventTypeWarning, FirstTimestamp: now, LastTimestamp: now, Count: 1,
			Source: corev1.EventSource{Component: "packetwalk", Host: n.node}, ReportingController: "packetwalk.dev/registry",
		}, metav1.CreateOptions{})
		if err != nil {
			n.log.Warn("a pod is not told what stands for its image", "pod", p.Name, "image", ref, "err", err)
		}
	}
}

func hasImage(p *corev1.Pod, ref string) bool {
	want := fullName(ref)
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			if fullName(c.Image) == want {
				return true
			}
		}
	}
	return false
}

// fullName is an image's name with registry and tag, "" for what is none.
func fullName(ref string) string {
	r, err := name.ParseReference(ref)
	if err != nil {
		return ""
	}
	return r.Name()
}
