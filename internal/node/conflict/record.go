package conflict

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// recordName begins the abstract name of the socket that is the record of the process that has a part (unix(7)). Such a name belongs to one
// network namespace, needs no file that could be shared or left behind, and the kernel gives it back when the process ends, however it
// does. A name ends in random text, so that no other user can take it first.
const recordName = "@packetwalk-node/"

// The roles of packetwalk-node, by which processes take them.
const (
	ServiceProxy = "service-proxy"
	MasqAgent    = "ip-masq-agent"
)

// ErrTaken is that another process has the part.
var ErrTaken = errors.New("another packetwalk-node on this node has it")

// Take makes this process the one that has a part, such as "service-proxy", in its network namespace, for as long as it lives. The error
// is ErrTaken where another of the same user has it. Names that other users have taken do not count, however many they are. Of several that
// try at once, one succeeds.
func Take(part string) error {
	l, err := listen(part)
	if err == nil {
		go answer(l) // until the process ends
	}
	return err
}

func listen(part string) (net.Listener, error) {
	own := recordName + part + "#" + rand.Text()
	l, err := net.Listen("unix", own)
	if err != nil {
		return nil, fmt.Errorf("record the owner of %s: %w", part, err)
	}
	taken, err := hasOther(part, own)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look for another owner of %s: %w", part, err), l.Close())
	}
	if taken {
		return nil, errors.Join(ErrTaken, l.Close())
	}
	return l, nil
}

// yieldTime is how long a process that took a later name at the same moment has to see the earlier one and to give its own back.
const yieldTime = time.Second

// hasOther reports whether another process of ours has a part for which this one has just taken a name. Each takes its name before it looks
// for others: of two that try at once, at least one sees the other. Of two that both do, the one whose name sorts first waits for the other
// to give way. An owner that has the part already does not give way, whatever its name is.
//
// The kernel's list of sockets may miss one when another ends while it is read, so it has to show none twice in a row.
func hasOther(part, own string) (bool, error) {
	clear := 0
	for end := time.Now().Add(yieldTime); ; {
		before, after, err := otherOwners(part, own)
		switch {
		case err != nil || before:
			return before, err
		case !after:
			if clear++; clear == 2 {
				return false, nil
			}
		case time.Now().After(end):
			return true, nil
		default:
			clear = 0
			time.Sleep(answerPause)
		}
	}
}

// otherOwners reports whether processes of ours have names for a part that sort before and after own.
func otherOwners(part, own string) (before, after bool, err error) {
	end := time.Now().Add(answerTime) // for all names together
	err = eachListening("/proc/self/net/unix", func(name string) bool {
		if name == own || name != recordName+part && !strings.HasPrefix(name, recordName+part+"#") || !isOursBy(name, end) {
			return true
		}
		before, after = before || name < own, after || name > own
		return !before
	})
	return before, after, err
}

// eachListening calls do with the name of each socket that listens in the text of /proc/net/unix, until it returns false. A name is
// column 8; flag 0x10000 of column 4 is that it listens (net/unix/af_unix.c, __SO_ACCEPTCON). A name may contain spaces, ours do not.
func eachListening(file string, do func(name string) bool) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 8 && fields[3] == "00010000" && !do(fields[7]) {
			return nil
		}
	}
	return lines.Err()
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

// How long owners of names may take to answer: they do not while they have no processor.
const (
	answerTime  = 2 * time.Second
	answerPause = 20 * time.Millisecond
)

// isOursBy calls isOurs at least once, and again until the given time while there is no answer. An owner that does not
// answer is not ours.
func isOursBy(name string, end time.Time) bool {
	for {
		ours, err := isOurs(name)
		if err == nil || errors.Is(err, unix.ECONNREFUSED) || time.Now().After(end) {
			return err == nil && ours
		}
		time.Sleep(answerPause)
	}
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

// peerUser returns the user whose process listens at the other end (unix(7), SO_PEERCRED).
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
