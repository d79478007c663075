package lab

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/google/go-containerregistry/pkg/name"

	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/realnode"
)

// lookAlikes makes images of the built-in applications, for real nodes: of AKS's own pods, and where an image of others cannot be had. They
// are in the machine's store like all others, and made when they are asked for.
type lookAlikes struct {
	*core
	mu   sync.Mutex
	made map[string]string // images by their repositories
}

// Before the names of those images, of AKS's own pods and of others.
const (
	ownPrefix     = "packetwalk.dev/own/"
	builtInPrefix = "packetwalk.dev/built-in/"
)

// find gives the name of the image that stands for another; ok is false where there is none. own tells of an image of AKS's own pods.
func (l *lookAlikes) find(ctx context.Context, store *images.Store, ref string, own bool) (image string, a app.App, ok bool, err error) {
	a, err = app.Resolve(ref)
	if err != nil || strings.Contains(ref, "@") || len(a.Brought) > 0 && !own {
		return "", a, false, nil
	}
	repository := builtInPrefix + a.Name
	if own {
		repository = ownPrefix + a.Name
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if image = l.made[repository]; image != "" {
		if _, err := store.Manifest(image); err == nil {
			return image, a, true, nil
		}
	}
	if image, err = l.make(ctx, store, repository, a); err != nil {
		return "", a, false, err
	}
	if l.made == nil {
		l.made = map[string]string{}
	}
	l.made[repository] = image
	return image, a, true, nil
}

// make makes an application's image: the distribution's files but for AKS's own pods, the program, which several have, and what makes it
// this application. Its tag tells of which files it was made; one of others goes.
func (l *lookAlikes) make(ctx context.Context, store *images.Store, repository string, a app.App) (string, error) {
	var dirs []string
	if strings.HasPrefix(repository, builtInPrefix) {
		distribution, err := l.runtime.Base(ctx)
		if err != nil {
			return "", err
		}
		dirs = append(dirs, distribution)
	}
	program := l.bin.App
	for _, path := range a.Brought {
		program = l.runtime.Programs[filepath.Base(path)]
	}
	sum, err := sumOf(program)
	if err != nil {
		return "", err
	}
	image := fmt.Sprintf("%s:%.12x", repository, sha256.Sum256(fmt.Appendf(nil, "%s%s%q", sum, dirs, a.Files)))
	if _, err := store.Manifest(image); err == nil {
		return image, nil
	}
	own, err := os.MkdirTemp("", "packetwalk-image-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(own)
	if dirs, err = writeApp(own, dirs, program, a); err != nil {
		return "", err
	}
	list, err := store.List(ctx)
	if err != nil {
		return "", err
	}
	_, err = store.Assemble(ctx, images.Assembly{Name: image, Dirs: dirs, Entrypoint: a.Entrypoint, Cmd: a.Cmd, Env: a.Env})
	for _, old := range list {
		if err == nil && strings.HasPrefix(old.Name, repository+":") {
			err = store.Remove(ctx, old.Name)
		}
	}
	return image, err
}

// writeApp adds to the layers of an application's image its own ones, made in dir.
func writeApp(dir string, below []string, program string, a app.App) (layers []string, err error) {
	const at = "/.packetwalk/program"
	var files []realnode.File
	for _, p := range a.Programs {
		files = append(files, realnode.File{Path: p.Path, Link: at})
	}
	for _, path := range a.Brought {
		files = append(files, realnode.File{Path: path, Link: at})
	}
	for _, f := range a.Files {
		files = append(files, realnode.File{Path: f.Path, Text: f.Text})
	}
	first, second := filepath.Join(dir, "program"), filepath.Join(dir, "app")
	err = errors.Join(realnode.CopyProgram(program, filepath.Join(first, at)), realnode.WriteLayer(second, files))
	return append(below, first, second), err
}

func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return string(h.Sum(nil)), err
}

// nodeImages are the library for one real node: where an image cannot be had, what stands for it, which the pods' events say.
type nodeImages struct {
	*library
	node   string
	client kubernetes.Interface
	told   sync.Map // pods, by UID and image
}

// Manifest is the registry's.
func (n *nodeImages) Manifest(ctx context.Context, ref string) (images.Manifest, error) {
	m, err := n.library.Manifest(ctx, ref)
	if !errors.Is(err, images.ErrNotFound) {
		return m, err
	}
	store, missing := n.open()
	if missing != nil {
		return m, err
	}
	own := n.isOwn(ref)
	image, a, ok, failed := n.alikes.find(ctx, store, ref, own)
	if failed != nil {
		return m, fmt.Errorf("%w; the built-in %s, which stands for it, cannot be made: %w", err, a.Name, failed)
	}
	if !ok {
		return m, err
	}
	if own {
		return store.Manifest(image)
	}
	n.tell(ctx, ref, fmt.Sprintf("%v. Until then the built-in %s stands for it", err, a.Name))
	return store.Manifest(image)
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
