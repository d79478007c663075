package cni

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// locks is the file that holds the locks of a network. Each lock is a byte of the file, so that a command that hangs blocks only commands
// that work on the same thing. The locks belong to the open file (fcntl(2), F_OFD_SETLK): programs that inherit the file hold its lock,
// too. The lock ends with the last of these programs, also when they are killed.
type locks string // the file

// lockOffset is the byte of the file that is locked. An attachment's is the hash of its host interface's name.
type lockOffset int64

const (
	stateLock    lockOffset = iota // the state file, for no longer than reading and writing it takes
	nodeLock                       // what the node's pods share
	ebtablesLock                   // ebtables of the legacy kind, whose programs undo what others do at the same time
	firstAttachment
)

func attachmentLock(hostIf string) lockOffset {
	h := fnv.New64a()
	_, _ = h.Write([]byte(hostIf)) // a hash takes all
	return firstAttachment + lockOffset(h.Sum64()>>2)
}

// lockLimit is how long a command waits for a lock: longer than the programs that its holder runs may take.
const lockLimit = 30 * time.Second

// errLocked says that another command holds the lock.
var errLocked = errors.New("another command is at work on it")

// acquire locks a file, and waits for that up to limit. Closing the file releases the lock.
func (l locks) acquire(at lockOffset, how int16, limit time.Duration) (*os.File, error) {
	f, err := os.OpenFile(string(l), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, coded(types.ErrIOFailure, fmt.Errorf("open the network's locks: %w", err))
	}
	lock := unix.Flock_t{Type: how, Start: int64(at), Len: 1}
	pause := time.Millisecond
	for end := time.Now().Add(limit); ; pause = min(2*pause, 16*time.Millisecond) {
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EINTR) {
			err = coded(types.ErrIOFailure, fmt.Errorf("lock %s: %w", l, err))
			break
		}
		if err = errLocked; time.Now().After(end) {
			break
		}
		time.Sleep(pause)
	}
	f.Close()
	return nil, err
}

func newLocks(dir, network string) locks { return locks(filepath.Join(dir, network+".lock")) }
