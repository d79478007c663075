package boot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/beneath"
	"packetwalk.dev/internal/pods/container"
)

// accountsMost is how much of an image's /etc/passwd and /etc/group is read, in bytes.
const accountsMost = 4 << 20

// account finds out who the container's processes are: the Spec's numbers, or the user that its image names, each with the groups that the
// container's own accounts give it. It is called in the container's root.
func account(s *container.Spec) (container.Account, error) {
	who := s.User
	if s.UID != nil {
		who = strconv.FormatInt(*s.UID, 10)
	}
	if s.GID != nil {
		name, _, _ := strings.Cut(who, ":")
		who = name + ":" + strconv.FormatInt(*s.GID, 10)
	}
	passwd, err := accounts("/etc/passwd")
	if err != nil {
		return container.Account{}, err
	}
	defer passwd.Close()
	group, err := accounts("/etc/group")
	if err != nil {
		return container.Account{}, err
	}
	defer group.Close()
	found, err := user.GetExecUser(who, &user.ExecUser{Home: "/"}, io.LimitReader(passwd, accountsMost), io.LimitReader(group, accountsMost))
	if err != nil {
		return container.Account{}, fmt.Errorf("%w: user %q: %w", container.ErrStart, who, err)
	}
	a := container.Account{UID: found.Uid, GID: found.Gid, Groups: found.Sgids, Home: found.Home}
	if s.StrictGroups {
		a.Groups = nil
	}
	for _, g := range s.Groups {
		a.Groups = append(a.Groups, int(g))
	}
	return a, nil
}

// accounts opens a file with accounts; an image need not have one. What is no file is not read: a pipe would never end.
func accounts(name string) (io.ReadCloser, error) {
	f, err := beneath.InRoot("/", name, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return io.NopCloser(strings.NewReader("")), nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: accounts of the image: %w", container.ErrStart, err)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%w: %s of the image is no file", container.ErrStart, name)
	}
	return f, nil
}
