// Package source finds what containers are made from, in one order: an image of the machine's store, then the image of a built-in
// application by its name, which is made first if it must be, then what the image's registry has, which is pulled into the store. It must
// not import Kubernetes, or anything that runs pods.
package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/signal"

	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/pull"
)

// An Image is what a container is made from.
type Image struct {
	ID     string        // as a pod's status has it
	Layers []string      // container.Spec's
	Config images.Config // of the image
	App    string        // the built-in application that it is of; "" for an image of others
	// Pulled tells that it came for this container.
	Pulled bool
}

// A Request is for a container's image.
type Request struct {
	Ref   string
	Never bool // it must not be pulled
	// Pulling is called when it is about to be; nil for nobody.
	Pulling func()
}

// A Finder finds images.
type Finder struct {
	// Ensure has a store with the image, if it can: pulled tells that it came now. The error is why it cannot; the store, nil where that
	// cannot be opened, may have an older one.
	Ensure func(ctx context.Context, r Request) (store *images.Store, pulled bool, err error)
	// Own reports whether an image is one of packetwalk's programs, which no registry has.
	Own func(ref string) bool
	// BuiltIn makes the images of built-in applications. NoNames has the names of others mean what their registries have.
	BuiltIn *BuiltIn
	NoNames bool
}

// A Found image is one of a store's, by the name that it has there.
type Found struct {
	Store  *images.Store
	Ref    string
	App    string // as an Image's
	Pulled bool
}

// Find finds an image. A digest never means a built-in application: it names an image's very octets. [images.ErrNotFound] is in the error's
// chain where there is none.
func (f *Finder) Find(ctx context.Context, r Request) (Found, error) {
	a, err := app.Resolve(r.Ref)
	if named := err == nil && !strings.Contains(r.Ref, "@") && (!f.NoNames || f.Own(r.Ref)); named {
		store, err := f.BuiltIn.Open()
		if err != nil {
			return Found{}, err
		}
		if _, err := store.Manifest(r.Ref); errors.Is(err, images.ErrNotFound) {
			return f.BuiltIn.find(ctx, &a)
		}
	}
	store, pulled, missing := f.Ensure(ctx, r)
	switch {
	case ctx.Err() != nil:
		return Found{}, ctx.Err()
	case store == nil:
		return Found{}, missing
	}
	_, err = store.Manifest(r.Ref)
	if errors.Is(err, images.ErrNotFound) {
		err = pull.Why(r.Ref, missing)
	}
	return Found{Store: store, Ref: r.Ref, Pulled: pulled}, err
}

// Image is Find for who runs the image here.
func (f *Finder) Image(ctx context.Context, r Request) (Image, error) {
	return unpacked(ctx, func() (Found, error) { return f.Find(ctx, r) })
}

// tries is how often what another process removes is looked for.
const tries = 3

// unpacked has an image's layers unpacked, also where another lab, which has another program, puts its own in its place meanwhile.
func unpacked(ctx context.Context, find func() (Found, error)) (i Image, err error) {
	for range tries {
		found, err := find()
		if err != nil {
			return i, err
		}
		of, err := found.Store.Image(ctx, found.Ref)
		i = Image{ID: of.Digest, Layers: of.Layers, Config: of.Config, App: found.App, Pulled: found.Pulled}
		if !errors.Is(err, images.ErrNotFound) {
			return i, err
		}
	}
	return i, err
}

// Said is what an event says of an image that is there.
func (i *Image) Said(ref string) string {
	if i.Pulled {
		return fmt.Sprintf("Successfully pulled image %q", ref)
	}
	return fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", ref)
}

// Gone tells whether the image was removed since it was found.
func (i *Image) Gone() bool {
	return slices.ContainsFunc(i.Layers, func(dir string) bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// Apply puts what an image says into the spec of a container, below what the pod says.
func (i *Image) Apply(s *container.Spec) error {
	s.App, s.Layers = i.App, i.Layers
	s.ImageEnv = i.Config.Env
	s.User, _, _ = strings.Cut(i.Config.User, ":") // the group is the user's own, as with containerd (getUserFromImage)
	if len(s.Command) == 0 {
		s.Command = i.Config.Entrypoint
		if len(s.Args) == 0 {
			s.Args = i.Config.Cmd
		}
	}
	if s.WorkingDir == "" {
		s.WorkingDir = i.Config.WorkingDir
	}
	s.Volumes = i.Config.Volumes
	if name := i.Config.StopSignal; name != "" {
		var err error
		if s.StopSignal, err = signal.ParseSignal(name); err != nil {
			return fmt.Errorf("the image's stop signal: %w", err)
		}
	}
	return nil
}
