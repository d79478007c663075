package cni

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// session is one command at work. What it does takes three kinds of locks, each held only as long as that works on what it is for: an
// attachment's, the node's, and the state file's.
type session struct {
	*store
	conf  *config
	node  *node
	net   network
	stamp string // the namespace's incarnation now
	// intact: the state says that the node's part of the network is complete in this namespace.
	intact bool
}

// open parses the configuration.
func open(args *skel.CmdArgs) (*session, error) {
	conf, err := parseConfig(args.StdinData, os.ReadFile)
	if err != nil {
		return nil, err
	}
	st, err := newStore(conf.StateDir, conf.Name)
	if err != nil {
		return nil, err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	s := &session{store: st, conf: conf}
	s.node = &node{Handle: h, config: conf, ebtables: ebtables{locks: st.locks}}
	s.net = kinds[conf.Mode](s.node)
	return s, nil
}

func (s *session) close() { s.node.Close() }

// refresh reads the state, and updates it to what the kernel has.
func (s *session) refresh() error { return s.underLock(unix.F_RDLCK, func() error { return nil }) }

// change reads the state, brings it up to what the kernel has, lets f change it and writes it. f must not take long.
func (s *session) change(f func() error) error {
	return s.underLock(unix.F_WRLCK, func() error {
		if err := f(); err != nil {
			return err
		}
		return s.save()
	})
}

func (s *session) underLock(how int16, f func() error) error {
	lock, err := s.acquire(stateLock, how, lockLimit)
	if err != nil {
		return coded(types.ErrTryAgainLater, fmt.Errorf("lock the state of network %s: %w", s.conf.Name, err))
	}
	defer lock.Close()
	if err := s.read(); err != nil {
		return err
	}
	if err := s.reconcile(); err != nil {
		return err
	}
	return f()
}

// hold locks an attachment until the function returned is called, waiting for it for up to limit.
func (s *session) hold(hostIf string, limit time.Duration) (release func(), err error) {
	lock, err := s.acquire(attachmentLock(hostIf), unix.F_WRLCK, limit)
	if err != nil {
		return nil, coded(types.ErrTryAgainLater, fmt.Errorf("lock the attachment %s: %w", hostIf, err))
	}
	e := &s.node.ebtables
	e.held = append(e.held, lock)
	return func() {
		e.held = slices.DeleteFunc(e.held, func(f *os.File) bool { return f == lock })
		lock.Close()
	}, nil
}

// reconcile fits the state to the namespace. A state of another incarnation (the node started anew) keeps only the attachments whose link
// is there, which after a reboot is none: their addresses are free again, because no interface can have them. Where the state is lost or
// another's, attachments are rebuilt from the kernel.
func (s *session) reconcile() error {
	var err error
	if s.stamp, err = incarnation(); err != nil {
		return err
	}
	if s.found && s.Incarnation == s.stamp {
		s.intact = s.NodeReady
		return nil
	}
	s.Attachments = slices.DeleteFunc(s.Attachments, func(a attachment) bool { return !s.alive(&a) })
	rebuilt, err := s.net.Recover()
	if err != nil {
		return err
	}
	for _, a := range rebuilt {
		known := func(x attachment) bool { return x.HostIf == a.HostIf || x.Address == a.Address }
		if inPool(s.conf.Pool, a.Address) && !slices.ContainsFunc(s.Attachments, known) {
			s.add(a)
		}
	}
	s.Incarnation, s.NodeReady, s.Released, s.intact = s.stamp, false, nil, false
	return nil
}

// alive: the node's end of the veth is there. It goes when either end's namespace goes.
func (s *session) alive(a *attachment) bool {
	l, err := link(s.node.Handle, a.HostIf)
	return err != nil || l != nil
}

// removeAttachments removes the attachments for which a function returns true, except those that another command works on. The lock of own
// is held. known says that their addresses may be in use elsewhere.
func (s *session) removeAttachments(own *attachment, known bool, which func(*attachment) bool) error {
	if err := s.refresh(); err != nil {
		return err
	}
	for _, old := range slices.Clone(s.Attachments) {
		if !which(&old) {
			continue
		}
		if err := s.removeAttachment(own, known, old, which); err != nil {
			return fmt.Errorf("take back %s: %w", old.HostIf, err)
		}
	}
	return nil
}

func (s *session) removeAttachment(own *attachment, known bool, old attachment, which func(*attachment) bool) error {
	if own == nil || own.HostIf != old.HostIf {
		release, err := s.hold(old.HostIf, 0)
		if errors.Is(err, errLocked) {
			return nil
		} else if err != nil {
			return err
		}
		defer release()
	}
	if err := s.refresh(); err != nil { // its maker may have come to its end meanwhile
		return err
	}
	i := slices.IndexFunc(s.Attachments, func(a attachment) bool { return a.HostIf == old.HostIf && a.Address == old.Address })
	if i < 0 || !which(&s.Attachments[i]) {
		return nil
	}
	return s.remove(s.Attachments[i], known)
}

// holdNode locks what the node's pods share.
func (s *session) holdNode() (*os.File, error) {
	lock, err := s.acquire(nodeLock, unix.F_WRLCK, lockLimit)
	if err != nil {
		err = coded(types.ErrTryAgainLater, fmt.Errorf("lock the node's part of network %s: %w", s.conf.Name, err))
	}
	return lock, err
}

// ensureNode sets up what the node's pods share, unless it is in place, and gives back how to remove it when it made it.
func (s *session) ensureNode() (undo, error) {
	if s.intact {
		if ready, err := s.net.Ready(); ready || err != nil {
			return nil, err
		}
	}
	lock, err := s.holdNode()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	made, err := s.net.Ensure()
	if err != nil {
		return nil, err
	}
	return made, s.change(func() error {
		s.NodeReady = true
		return nil
	})
}

// undoAttachment forgets an attachment that could not be made, and takes back what was made for it of the node's part, unless another
// counts on that.
func (s *session) undoAttachment(a *attachment, made undo) error {
	if len(made) > 0 {
		lock, err := s.holdNode()
		if err != nil {
			return err
		}
		defer lock.Close()
	}
	alone := false
	err := s.change(func() error {
		s.forget(*a, false)
		if alone = len(made) > 0 && len(s.Attachments) == 0; alone {
			s.NodeReady = false
		}
		return nil
	})
	if err != nil || !alone {
		return err
	}
	return made.run()
}

// remove detaches and forgets. The record goes last: when it fails or is killed before, the next DEL goes on.
func (s *session) remove(a attachment, known bool) error {
	if err := s.net.Detach(&a); err != nil {
		return err
	}
	return s.change(func() error {
		s.forget(a, known)
		return nil
	})
}
