package kubelet

import (
	"context"
	"errors"
	"fmt"
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
	// LookAlike says that the application stands for an image of others, and what to do for that; "" where it does not.
	LookAlike string
}

// FromStore finds images in a store, and built-in applications where they are not there. Without a store there are these only.
func FromStore(store *images.Store) func(ctx context.Context, ref string) (Image, error) {
	return func(ctx context.Context, ref string) (Image, error) {
		err := images.ErrNotFound
		if store != nil {
			var i images.Image
			if i, err = store.Image(ctx, ref); err == nil {
				return Image{ID: i.Digest, Layers: i.Layers, Config: i.Config}, nil
			}
		}
		if !errors.Is(err, images.ErrNotFound) {
			return Image{}, err
		}
		return builtIn(ref)
	}
}

// builtIn finds the built-in application that stands for an image. None stands for a digest, which names the image's very octets.
func builtIn(ref string) (Image, error) {
	const load = "docker save IMAGE | packetwalk image load -"
	a, err := app.Resolve(ref)
	if err != nil || strings.Contains(ref, "@") {
		return Image{}, fmt.Errorf("image %q is not loaded, and nothing built in stands for it: %s", ref, load)
	}
	i := Image{ID: idPrefix + a.Name, App: a.Name}
	if !strings.HasPrefix(ref, "packetwalk/") { // our own
		i.LookAlike = fmt.Sprintf("Image %q is not loaded: the built-in %s stands for it (for the image itself: %s)", ref, a.Name, load)
	}
	return i, nil
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
