package incumbent

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// recordName is the abstract name of the socket that is the record of the process that has a part (unix(7)). Such a name belongs to one
// network namespace, needs no file that could be shared or left behind, and the kernel gives it back when the process ends, however it
// does.
const recordName = "@packetwalk-node/"

// ErrTaken is that another process has the part.
var ErrTaken = errors.New("another packetwalk-node on this node has it")

// maxImpostors is how many names other users may have taken: every process in the network namespace can take one.
const maxImpostors = 64

// Take makes this process the one that has a part, such as "service-proxy", in its network namespace, for as long as it lives. The error
// is ErrTaken where another of the same user has it; a name that another user has does not count, and the next one is the record.
// Of several that try at once, one succeeds.
func Take(part string) error {
	l, err := take(part)
	if err == nil {
		go answer(l) // until the process ends
	}
	return err
}

func take(part string) (net.Listener, error) {
	for n := range maxImpostors {
		l, err := net.Listen("unix", nameOf(part, n))
		if err == nil {
			if hasOther(part, n) {
				return nil, errors.Join(ErrTaken, l.Close())
			}
			return l, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("record the owner of %s: %w", part, err)
		}
		if isOursSoon(nameOf(part, n)) {
			return nil, ErrTaken
		}
	}
	return nil, fmt.Errorf("record the owner of %s: other users have taken all %d names for it", part, maxImpostors)
}

// yieldTime is how long a process that took a later name at the same moment has to see the earlier one and to give its own back.
const yieldTime = time.Second

// hasOther reports whether another process of ours has a part whose nth name this one has just taken. Another user may take an earlier name
// and give it back at any time, so two processes can take two names at once. Each takes its name before it looks for the other's: at least
// one sees the other, and of two that both do the earlier name is the record.
func hasOther(part string, n int) bool {
	for earlier := range n {
		if ours, _ := isOurs(nameOf(part, earlier)); ours {
			return true
		}
	}
	end := time.Now().Add(yieldTime)
	for later := n + 1; later < maxImpostors; later++ {
		for {
			if ours, _ := isOurs(nameOf(part, later)); !ours {
				break
			}
			if time.Now().After(end) {
				return true
			}
			time.Sleep(answerPause)
		}
	}
	return false
}

func nameOf(part string, n int) string {
	if n == 0 {
		return recordName + part
	}
	return recordName + part + "#" + strconv.Itoa(n)
}

// answer lets others ask whose the record is: the kernel tells every client that connects.
func answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			time.Sleep(time.Second) // no descriptors are left, as a rule
			continue
		}
		c.Close()
	}
}

// How long the owner of a name may take to answer: between bind(2) and listen(2) it does not, nor when it is stopped or has no processor.
const (
	answerTime  = 2 * time.Second
	answerPause = 20 * time.Millisecond
)

// isOursSoon is isOurs for a name that has an owner, which gets time to answer. An owner that does not answer is not ours.
func isOursSoon(name string) bool {
	for end := time.Now().Add(answerTime); time.Now().Before(end); time.Sleep(answerPause) {
		if ours, err := isOurs(name); err == nil {
			return ours
		}
	}
	return false
}

// isOurs reports whether a name's owner is a process of this process's user. It returns an error where no process answers.
func isOurs(name string) (bool, error) {
	c, err := net.DialTimeout("unix", name, answerTime)
	if err != nil {
		return false, err
	}
	defer c.Close()
	uid, err := peerUser(c.(*net.UnixConn))
	return uid == uint32(unix.Geteuid()), err
}

// peerUser is the user whose process listens at the other end (unix(7), SO_PEERCRED).
func peerUser(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failed); err != nil {
		return 0, err
	}
	return peer.Uid, nil
}
