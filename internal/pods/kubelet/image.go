package kubelet

import (
	"errors"
	"fmt"
	"strconv"

	"packetwalk.dev/internal/pods/container"
)

// imageLabel is the label of a container's spec that has its image's ID.
const imageLabel = "packetwalk.dev/image"

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
