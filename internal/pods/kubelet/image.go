package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
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

// An ImageRequest is for a container's image.
type ImageRequest struct {
	Ref   string
	Never bool // it must not be pulled
	// Pulling is called when it is about to be; nil for nobody.
	Pulling func()
}

// A Library has a store with the image, if it can: pulled tells that it came now. The error is why it cannot; the store, nil where that
// cannot be opened, may have an older one.
type Library func(ctx context.Context, r ImageRequest) (store *images.Store, pulled bool, err error)

// FromLibrary finds images in a library, and built-in applications where they are not there.
func FromLibrary(ensure Library) func(ctx context.Context, r ImageRequest) (Image, error) {
	return func(ctx context.Context, r ImageRequest) (Image, error) {
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
		return builtIn(r.Ref, missing)
	}
}

// builtIn finds the built-in application that stands for an image, which is missing for a reason, or has not been asked for. None stands
// for a digest, which names the image's very octets.
func builtIn(ref string, missing error) (Image, error) {
	load := fmt.Sprintf("packetwalk image load %s, or docker save %s | packetwalk image load -", ref, ref)
	is := "is not loaded"
	if missing != nil {
		is = fmt.Sprintf("cannot be pulled (%v)", missing)
	}
	a, err := app.Resolve(ref)
	if err != nil || strings.Contains(ref, "@") {
		return Image{}, fmt.Errorf("image %q %s, and nothing built in stands for it: %s", ref, is, load)
	}
	i := Image{ID: idPrefix + a.Name, App: a.Name}
	if !strings.HasPrefix(ref, "packetwalk/") { // our own
		i.LookAlike = fmt.Sprintf("Image %q %s: the built-in %s stands for it (for the image itself: %s)", ref, is, a.Name, load)
	}
	return i, nil
}

// said is what an event says of an image that is there.
func (i *Image) said(ref string) string {
	switch {
	case i.LookAlike != "":
		return i.LookAlike
	case i.Pulled:
		return fmt.Sprintf("Successfully pulled image %q", ref)
	}
	return fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", ref)
}

// gone tells whether the image was removed since it was found.
func (i *Image) gone() bool {
	return slices.ContainsFunc(i.Layers, func(dir string) bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, fs.ErrNotExist)
	})
}

// imageLabel is the label of a container's spec that has its Image's ID.
const imageLabel = "packetwalk.dev/image"

// apply puts what an image says into the spec of a container, below what the pod says.
func (i *Image) apply(s *container.Spec) error {
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

// mayBeRoot tells why a container that must not run as root could: the user that it names, or its image does, is 0 or no number.
func mayBeRoot(s *container.Spec) error {
	uid, err := strconv.ParseInt(s.User, 10, 64)
	switch {
	case s.UID != nil && *s.UID != 0:
		return nil
	case s.UID != nil || s.User == "" || err == nil && uid == 0:
		return errors.New("container has runAsNonRoot and image will run as root")
	case err != nil:
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root", s.User)
	}
	return nil
}
