// Package handover gives the network namespace of a pod to who makes its network from outside of the machine that the pod runs on: a CNI
// plugin on the machine sends it over a Unix socket, and waits for the pod's address.
package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/limitio"
)

// limit is how long a handover may take: who gets the namespace makes links and rules, and starts a program. A container runtime that has
// waited longer has given up.
const limit = time.Minute

// answerLimit is how long the plugin may take to read the answer.
const answerLimit = 10 * time.Second

// answer is what the plugin gets: an address with the length of its subnet's prefix, or why there is none.
type answer struct {
	Address netip.Prefix `json:"address,omitzero"`
	Error   string       `json:"error,omitempty"`
}

// maxAnswer is the most that an answer holds, bytes.
const maxAnswer = 64 << 10

// Serve takes the namespaces that are sent to a socket, one after the other, until ctx ends. join makes the network in it and gives the
// pod's address; the file is closed afterwards. Processes of root alone are listened to.
func Serve(ctx context.Context, l net.Listener, join func(context.Context, *os.File) (netip.Prefix, error)) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		var a answer
		if a.Address, err = receive(ctx, c.(*net.UnixConn), join); err != nil {
			a.Error = err.Error()
		}
		text, _ := json.Marshal(a) // an address and a string
		_ = c.SetDeadline(time.Now().Add(answerLimit))
		_, _ = c.Write(text) // the plugin may be gone
		c.Close()
	}
}

// receive takes one namespace.
func receive(ctx context.Context, c *net.UnixConn, join func(context.Context, *os.File) (netip.Prefix, error)) (netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) }) // also when the lab process ends
	defer stop()
	if err := fromRoot(c); err != nil {
		return netip.Prefix{}, err
	}
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("receive a namespace: %w", err)
	}
	fd, err := descriptor(rights[:n])
	if err != nil {
		return netip.Prefix{}, err
	}
	file := os.NewFile(uintptr(fd), "the pod's namespace")
	defer file.Close()
	return join(ctx, file)
}

// fromRoot reports as an error that the other end is of another user (SO_PEERCRED, unix(7)).
func fromRoot(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	failed := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	if peer.Uid != 0 {
		return fmt.Errorf("the sender is user %d, not root", peer.Uid)
	}
	return nil
}

// descriptor returns the one file descriptor of a control message (SCM_RIGHTS, unix(7)).
func descriptor(rights []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return -1, fmt.Errorf("there is no namespace in the message: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return -1, fmt.Errorf("there is no namespace in the message: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	unix.CloseOnExec(fds[0])
	return fds[0], nil
}

// send sends the namespace at a path to a socket, and waits for the pod's address.
func send(socket, netns string) (netip.Prefix, error) {
	file, err := os.Open(netns)
	if err != nil {
		return netip.Prefix{}, err
	}
	defer file.Close()
	c, err := net.DialTimeout("unix", socket, limit)
	if err != nil {
		return netip.Prefix{}, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return netip.Prefix{}, err
	}
	if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte{0}, unix.UnixRights(int(file.Fd())), nil); err != nil {
		return netip.Prefix{}, fmt.Errorf("send the pod's namespace: %w", err)
	}
	text, err := limitio.Read(c, maxAnswer)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("wait for the pod's network: %w", err)
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return netip.Prefix{}, fmt.Errorf("wait for the pod's network: %w", err)
	}
	if a.Error != "" {
		return netip.Prefix{}, errors.New(a.Error)
	}
	return a.Address, nil
}
