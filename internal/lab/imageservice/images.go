// Package imageservice has the machine's images as a lab has them: pulled by the cluster's policy, and served to the containerd of nodes.
package imageservice

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/pull"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/source"
)

// Service is the machine's images, as a lab has them: pulled where they are not there, for the registry of the nodes.
type Service struct {
	*lifecycle.Env
	life context.Context
	pull *pull.Library

	mu       sync.Mutex
	store    *images.Store
	client   *pull.Client
	own      []string // images of AKS's own pods and of sandboxes, by their full names: their programs are ours, and are not pulled
	preloads context.CancelFunc
}

// Start opens the store, if it can, and begins to pull what is to be preloaded. Nothing waits for that.
func (l *Service) Start(ctx context.Context) error {
	l.life, l.pull = ctx, pull.NewLibrary(ctx, l.Open)
	_, _ = l.Open() // a fault of the status
	return l.configure(l.Cluster())
}

// Change has pulls be what another cluster.yaml says.
func (l *Service) Change(_ context.Context, c lifecycle.Change) error {
	l.pull.Forget()
	return l.configure(c.To)
}

// configure sets how images are pulled, by a cluster.yaml.
func (l *Service) configure(c *cluster.Cluster) error {
	own, err := manifests.Images(c)
	if err != nil {
		return err
	}
	own = append(own, realnode.SandboxImage)
	for i, ref := range own {
		own[i] = fullName(ref)
	}
	var allowed []pull.Registry
	for _, s := range c.Spec.Images.PrivateRegistries {
		r, err := pull.ParseRegistry(s)
		if err != nil {
			return err
		}
		allowed = append(allowed, r)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.client, l.own = pull.NewClient(allowed), own
	if l.preloads != nil {
		l.preloads()
	}
	ctx, stop := context.WithCancel(l.life)
	l.preloads = stop
	for _, ref := range c.Spec.Images.Preload {
		go l.preload(ctx, ref)
	}
	return nil
}

// preload pulls an image until it is there.
func (l *Service) preload(ctx context.Context, ref string) {
	what := "image " + ref + " of spec.images.preload"
	for {
		_, _, err := l.ensure(ctx, source.Request{Ref: ref})
		if err != nil {
			err = pull.Why(ref, err)
		}
		if l.Fault(what, err) == nil {
			return
		}
		if !pause.For(ctx, lifecycle.KeepSteady) {
			_ = l.Fault(what, nil) // it is wanted no longer
			return
		}
	}
}

// Open opens the machine's image store, once it can.
func (l *Service) Open() (*images.Store, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.store != nil {
		return l.store, nil
	}
	dir, err := images.Dir()
	if err == nil {
		l.store, err = images.Open(dir)
	}
	if err != nil {
		err = fmt.Errorf("%w; until then no container starts", err)
	}
	return l.store, l.Fault("the machine's images", err)
}

// isOurs reports whether an image is of our own programs, as those of AKS's own pods. No registry has it.
func (l *Service) isOurs(ref string) bool {
	full := fullName(ref)
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.own, full) || strings.HasPrefix(full, name.DefaultRegistry+"/packetwalk/") || strings.HasPrefix(full, images.Own)
}

// finder finds images for nodes and container groups.
func (l *Service) finder() *source.Finder {
	names := l.Cluster().Spec.Images.BuiltIn
	return &source.Finder{Ensure: l.ensure, Own: l.isOurs, BuiltIn: l.BuiltIn, NoNames: names != nil && !*names}
}

// ensure has an image in the store, by the cluster's policy unless it must not be pulled.
func (l *Service) ensure(ctx context.Context, r source.Request) (*images.Store, bool, error) {
	l.mu.Lock()
	client := l.client
	l.mu.Unlock()
	policy := pull.IfNeeded
	switch of := l.Cluster().Spec.Images.Pull; {
	case r.Never, of == cluster.PullNever, l.isOurs(r.Ref):
		policy = pull.Never
	case of == cluster.PullAlways:
		policy = pull.Always
	}
	return l.pull.Ensure(ctx, client, pull.Request{Ref: r.Ref, Policy: policy, Pulling: r.Pulling})
}

// Manifest returns the registry's.
func (l *Service) Manifest(ctx context.Context, ref string) (images.Manifest, error) {
	found, err := l.finder().Find(ctx, source.Request{Ref: ref})
	if err != nil {
		return images.Manifest{}, err
	}
	return found.Store.Manifest(found.Ref)
}

// Blob returns the registry's.
func (l *Service) Blob(digest string) (*os.File, error) {
	store, err := l.Open()
	if err != nil {
		return nil, err
	}
	return store.Blob(digest)
}

// fullName returns an image's name with registry and tag, "" for an invalid one.
func fullName(ref string) string {
	r, err := name.ParseReference(ref)
	if err != nil {
		return ""
	}
	return r.Name()
}
