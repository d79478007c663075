// Package source finds what containers are made from: an image of the machine's store, which may be pulled first, or a built-in application
// that stands for one. It must not import Kubernetes, or anything that runs pods.
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
)

// An Image is what a container is made from: an image, or a built-in application that stands for one.
type Image struct {
	ID     string        // as a pod's status has it
	Layers []string      // container.Spec's; none for a built-in application
	Config images.Config // of the image
	App    string        // the name of the built-in application; "" for an image
	// Pulled tells that it came for this container.
	Pulled bool
	// LookAlike says that the application stands for an image of others, why, and what to do for that; "" where it does not.
	LookAlike string
}

// A Request is for a container's image.
type Request struct {
	Ref   string
	Never bool // it must not be pulled
	// Pulling is called when it is about to be; nil for nobody.
	Pulling func()
}

// Ensure has a store with the image, if it can: pulled tells that it came now. The error is why it cannot; the store, nil where that
// cannot be opened, may have an older one.
type Ensure func(ctx context.Context, r Request) (store *images.Store, pulled bool, err error)

// New finds images in a store, and built-in applications where they are not there.
func New(ensure Ensure) func(ctx context.Context, r Request) (Image, error) {
	return func(ctx context.Context, r Request) (Image, error) {
		store, pulled, missing := ensure(ctx, r)
		if ctx.Err() != nil {
			return Image{}, ctx.Err()
		}
		if store != nil {
			i, err := store.Image(ctx, r.Ref)
			if err == nil {
				return Image{ID: i.Digest, Layers: i.Layers, Config: i.Config, Pulled: pulled}, nil
			}
			if !errors.Is(err, images.ErrNotFound) {
				return Image{}, err
			}
		}
		return BuiltIn(r.Ref, missing)
	}
}

// BuiltIn finds the built-in application that stands for an image, which is missing for a reason, or has not been asked for. None stands
// for a digest, which names the image's very octets.
func BuiltIn(ref string, missing error) (Image, error) {
	load := fmt.Sprintf("packetwalk image load %s, or docker save %s | packetwalk image load -", ref, ref)
	is := "is not loaded"
	if missing != nil {
		is = fmt.Sprintf("cannot be pulled (%v)", missing)
	}
	a, err := app.Resolve(ref)
	if err != nil || strings.Contains(ref, "@") {
		return Image{}, fmt.Errorf("image %q %s, and nothing built in stands for it: %s", ref, is, load)
	}
	i := Image{ID: builtInID + a.Name, App: a.Name}
	if !strings.HasPrefix(ref, "packetwalk/") { // our own
		i.LookAlike = fmt.Sprintf("Image %q %s: the built-in %s stands for it (for the image itself: %s)", ref, is, a.Name, load)
	}
	return i, nil
}

// builtInID begins the ID of a built-in application.
const builtInID = "packetwalk://"

// Said is what an event says of an image that is there.
func (i *Image) Said(ref string) string {
	switch {
	case i.LookAlike != "":
		return i.LookAlike
	case i.Pulled:
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
	s.Image, s.Layers = i.App, i.Layers
	if i.App != "" {
		return nil
	}
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
