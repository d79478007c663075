package imageservice

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/sudouser"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/manifests"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/preload"
	"packetwalk.dev/internal/pods/realnode"
	"packetwalk.dev/internal/pods/source"
)

// firstImages returns the images that nodes have from their start: those of AKS's own pods in a cluster without addons, and the articles'
// application, with whose layers all built-in applications begin. They are the same for all labs, which share one file system of them.
func firstImages(c *cluster.Cluster) ([]string, error) {
	plain, errs := cluster.Parse(nil, nil)
	if len(errs) > 0 {
		return nil, errs
	}
	refs, err := manifests.SystemImages(plain)
	refs = append(refs, realnode.SandboxImage)
	if names := c.Spec.Images.BuiltIn; names == nil || *names {
		refs = append(refs, "erjosito/whereami:1.3")
	}
	return refs, err
}

// found resolves the first images by find, to what the archive holds and what identifies it. Images that do not exist are left out:
// metrics-server's program is optional.
func (l *Service) found(find func(ref string) (source.Found, error)) (named []images.RenamedImage, digests preload.Images, err error) {
	refs, err := firstImages(l.Cluster())
	if err != nil {
		return nil, nil, err
	}
	digests = preload.Images{}
	for _, ref := range refs {
		full, isTag := images.FullTag(ref)
		f, err := find(ref)
		if errors.Is(err, images.ErrNotFound) || !isTag {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		m, err := f.Store.Manifest(f.Ref)
		if err != nil {
			return nil, nil, err
		}
		named, digests[full] = append(named, images.RenamedImage{Ref: f.Ref, Name: full}), m.Digest
	}
	return named, digests, nil
}

func (l *Service) cache() (c preload.Cache, err error) {
	dir, err := sudouser.CacheDir()
	if err != nil {
		return c, err
	}
	c = preload.Cache{
		Dir: filepath.Join(dir, "packetwalk", "preloads"), App: l.Binaries.App,
		Containerd: filepath.Join(l.Binaries.RealNode, "containerd"), Ctr: filepath.Join(l.Binaries.RealNode, "ctr"),
	}
	return c, images.MakePrivate(c.Dir)
}

// MountFirst mounts the first images for the lab's nodes, if the machine has a file system of them. Without one, nodes pull them.
func (l *Service) MountFirst() {
	err := func() error {
		cache, err := l.cache()
		if err != nil {
			return err
		}
		_, digests, err := l.found(l.finder().Existing)
		if err != nil {
			return err
		}
		file, err := cache.Find(digests)
		if err != nil {
			return err
		}
		return l.Dir.MountImages(file)
	}()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.warnFirst(err)
	}
}

func (l *Service) warnFirst(err error) {
	l.Log.Warn("no images for the start of nodes: they pull them", "error", err)
}

// firstPause is between the start of a lab and the build of a file system of images: the lab's user has the machine first.
const firstPause = 10 * time.Second

// BuildFirst makes the machine's file system of first images, for the labs to come. Nothing waits for it, and where it fails, nodes pull.
func (l *Service) BuildFirst(ctx context.Context) {
	if !pause.For(ctx, firstPause) {
		return
	}
	err := func() error {
		cache, err := l.cache()
		if err != nil {
			return err
		}
		named, digests, err := l.found(func(ref string) (source.Found, error) {
			return l.finder().Find(ctx, source.Request{Ref: ref, Never: true})
		})
		if err != nil || len(named) == 0 {
			return err
		}
		store, err := l.Open()
		if err != nil {
			return err
		}
		return cache.Build(ctx, digests, func(ctx context.Context, to io.Writer) error { return store.SaveAs(ctx, to, named) })
	}()
	if err != nil && ctx.Err() == nil {
		l.warnFirst(err)
	}
}
