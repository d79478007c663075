package incumbent

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// recordName is the abstract name of the socket that is the record of who has a part (unix(7)). Such a name is one network namespace's,
// needs no file that somebody could share or forget, and the kernel gives it back when the process ends, however it does.
const recordName = "@packetwalk-node/"

// ErrTaken is that another process has the part.
var ErrTaken = errors.New("another packetwalk-node on this node has it")

// Take makes this process the one that has a part, such as "service-proxy", in its network namespace, for as long as it lives. The error
// is ErrTaken where another has it. Of several that try at once, one succeeds.
func Take(part string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("record who has %s: %w", part, err)
	}
	// Nobody listens: the name alone is the record. The descriptor stays open until the process ends.
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: recordName + part})
	if err == nil {
		return nil
	}
	unix.Close(fd)
	if errors.Is(err, unix.EADDRINUSE) {
		return ErrTaken
	}
	return fmt.Errorf("record who has %s: %w", part, err)
}
