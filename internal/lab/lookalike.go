package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/google/go-containerregistry/pkg/name"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/bounded"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/source"
)

// nodeImages are the library for one real node: where an image cannot be had, what stands for it, which the events of all pods say that run
// it. Its containerd keeps that under the image's name, and kubelet does not ask again: the name is taken from it when the image is there.
type nodeImages struct {
	*library
	node   string
	client kubernetes.Interface
	// file has lookAlikes for the next lab process; it lasts as long as the node's containerd.
	file string
	// forget takes a name from the node's containerd; gone tells that it had it.
	forget func(ctx context.Context, ref string) (gone bool, err error)
	asked  chan struct{} // of size 1: another has been given

	mu         sync.Mutex
	lookAlikes map[string]lookAlike // by the name that containerd asked for

	told map[string]bool // pods, by UID and image
}

// A lookAlike is what a node has under an image's name in place of it.
type lookAlike struct {
	Digest string    `json:"digest"` // of its manifest
	Text   string    `json:"text"`   // of events
	Given  time.Time `json:"given"`
}

// maxLookAlikes is the most that is read of a node's file, bytes.
const maxLookAlikes = 1 << 20

// imagesOf are a node's, with what an earlier lab process gave it.
func (l *nodes) imagesOf(n *node) *nodeImages {
	i := &nodeImages{library: l.library, node: n.Name, client: l.api.client, asked: make(chan struct{}, 1),
		file:   filepath.Join(l.dir.nodeState(n.Name), "look-alikes.json"),
		forget: func(ctx context.Context, ref string) (bool, error) { return l.forgetImage(ctx, n, ref) }}
	i.read()
	return i
}

func (n *nodeImages) read() {
	text, err := bounded.ReadFile(n.file, maxLookAlikes)
	if err == nil {
		err = json.Unmarshal(text, &n.lookAlikes)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.log.Warn("what stands for images on a node is not known any more", "node", n.node, "err", err)
	}
}

// change changes what the node has in place of images.
func (n *nodeImages) change(edit func(map[string]lookAlike)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lookAlikes == nil {
		n.lookAlikes = map[string]lookAlike{}
	}
	edit(n.lookAlikes)
	text, err := json.Marshal(n.lookAlikes)
	if err == nil {
		err = atomicfile.Write(n.file, text, 0o600)
	}
	return err
}

// Manifest is the registry's.
func (n *nodeImages) Manifest(ctx context.Context, ref string) (images.Manifest, error) {
	found, err := n.finder().Find(ctx, source.Request{Ref: ref})
	if err != nil {
		return images.Manifest{}, err
	}
	m, err := found.Store.Manifest(found.Ref)
	if err != nil || found.LookAlike == "" {
		return m, err
	}
	// Before the node has it.
	err = n.change(func(all map[string]lookAlike) { all[ref] = lookAlike{m.Digest, found.LookAlike, time.Now()} })
	select {
	case n.asked <- struct{}{}:
	default:
	}
	return m, err
}

// lookAgain is between two looks at what stands for images.
const lookAgain = time.Second

// follow has pods be told, and names forgotten, until ctx ends.
func (n *nodeImages) follow(ctx context.Context) {
	what := "look-alikes of images on " + n.node
	defer func() { _ = n.fault(what, nil) }()
	for ctx.Err() == nil {
		if err := n.look(ctx); ctx.Err() == nil {
			_ = n.fault(what, err)
		}
		select {
		case <-n.asked:
		case <-time.After(lookAgain):
		case <-ctx.Done():
		}
	}
}

// look looks once. What fails is done again at the next look.
func (n *nodeImages) look(ctx context.Context) error {
	n.mu.Lock()
	all := maps.Clone(n.lookAlikes)
	n.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	there, err := n.renew(ctx, all)
	return errors.Join(err, n.tell(ctx, all, there))
}

// giveUp is how long a node may take from when it asked for an image until it has it: containerd gives up what stands still for so long.
const giveUp = 5 * time.Minute

// renew has the node forget the names of images that are there now, and takes them from all. there are those that it may have a look-alike
// under still.
func (n *nodeImages) renew(ctx context.Context, all map[string]lookAlike) (there map[string]bool, err error) {
	store, err := n.open()
	if err != nil {
		return nil, nil //nolint:nilerr // open has said so
	}
	there = map[string]bool{}
	for ref, was := range all {
		if _, err := store.Manifest(ref); err != nil {
			continue
		}
		gone, e := n.forget(ctx, ref)
		if e != nil || !gone && time.Since(was.Given) < giveUp {
			there[ref], err = true, errors.Join(err, e)
			continue
		}
		delete(all, ref)
		err = errors.Join(err, n.change(func(now map[string]lookAlike) {
			if now[ref].Given.Equal(was.Given) {
				delete(now, ref)
			}
		}))
	}
	return there, err
}

// tell says in the events of the node's pods what stands for their images. One that cannot be told runs all the same.
func (n *nodeImages) tell(ctx context.Context, all map[string]lookAlike, there map[string]bool) error {
	pods, err := n.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.node).String(), ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("pods are not told what stands for their images: %w", err)
	}
	told := map[string]bool{}
	for _, p := range pods.Items {
		for ref, l := range all {
			key := string(p.UID) + " " + ref
			if !n.told[key] && l.isIn(&p, ref, !there[ref]) {
				if e := n.say(ctx, &p, key, l.Text); e != nil {
					err = errors.Join(err, fmt.Errorf("pod %s/%s is not told what stands for %s: %w", p.Namespace, p.Name, ref, e))
					continue
				}
				told[key] = true
			}
			told[key] = told[key] || n.told[key]
		}
	}
	n.told = told
	return err
}

// say makes an event of a pod, one for each key: its name is made of that.
func (n *nodeImages) say(ctx context.Context, p *corev1.Pod, key, text string) error {
	now := metav1.Now()
	_, err := n.client.CoreV1().Events(p.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("look-alike.%x", sha256.Sum256([]byte(key))), Namespace: p.Namespace},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		Reason:         "LookAlike", Message: text, Type: corev1.EventTypeWarning, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "packetwalk", Host: n.node}, ReportingController: "packetwalk.dev/registry",
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // an earlier lab process has told it
	}
	return err
}

// isIn tells whether a pod has a container of a look-alike that has the name ref on its node; next, whether one counts that is still to be
// made.
func (l lookAlike) isIn(p *corev1.Pod, ref string, next bool) bool {
	made := map[string]string{} // images of containers
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses,
		p.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			made[c.Name] = c.ImageID
		}
	}
	want := fullName(ref)
	is := func(container, image string) bool {
		of := made[container]
		return fullName(image) == want && (strings.HasSuffix(of, "@"+l.Digest) || of == "" && next && p.Status.Phase == corev1.PodPending)
	}
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for _, c := range list {
			if is(c.Name, c.Image) {
				return true
			}
		}
	}
	for _, c := range p.Spec.EphemeralContainers {
		if is(c.Name, c.Image) {
			return true
		}
	}
	return false
}

// forgetTime is how long containerd's command may take on a node.
const forgetTime = 30 * time.Second

// forgetImage takes a name from a real node's containerd; what was made of the image stays.
func (l *nodes) forgetImage(ctx context.Context, n *node, ref string) (gone bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, forgetTime)
	defer cancel()
	run := container.Run{Hostname: n.Name, Machine: n.machine.State().Pid, Env: []string{"LANG=C.UTF-8"},
		Args: []string{filepath.Join(realnode.ProgramsDir, "ctr"), "-n", "k8s.io", "images", "rm", ref}}
	if run.Machine == 0 {
		run.Machine = container.NoMachine
	}
	var out, errOut bytes.Buffer
	code, err := l.runtime.RunIn(ctx, run, nil, &out, &errOut)
	if err == nil && code != 0 {
		err = fmt.Errorf("ctr has ended with status %d: %s", code, strings.TrimSpace(errOut.String()))
	}
	if err != nil {
		return false, fmt.Errorf("%s has what stands for %s still: %w", n.Name, ref, err)
	}
	return strings.TrimSpace(out.String()) == ref, nil // it names what it has removed
}

// fullName is an image's name with registry and tag, "" for what is none.
func fullName(ref string) string {
	r, err := name.ParseReference(ref)
	if err != nil {
		return ""
	}
	return r.Name()
}
