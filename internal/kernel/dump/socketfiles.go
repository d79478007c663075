package dump

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// socketFile is a socket as /proc/net/tcp and its kin show it.
type socketFile struct {
	local netip.AddrPort
	state uint8
	inode uint32
}

// maxSocketFile bounds a file of sockets, in bytes: of a million it has 150 MB.
const maxSocketFile = 256 << 20

// listenersByFile lists the sockets of one protocol and family that take packets, where the kernel's socket diagnosis is not there. The
// files do not tell whether a socket of IPv6 takes IPv4, too, and whether it is transparent: that is asked of the socket itself.
func (d *Dumper) listenersByFile(ns *netns.Namespace, protocol packet.Protocol, state uint8, ipv6 bool) ([]snapshot.Listener, error) {
	file := "/proc/thread-self/net/" + strings.ToLower(protocol.String())
	if ipv6 {
		file += "6"
	}
	sockets, err := readSocketFile(ns, file)
	if os.IsNotExist(err) && ipv6 {
		return nil, nil // a kernel without IPv6
	}
	if err != nil {
		return nil, err
	}
	isOpen := func(inode uint32) (bool, error) {
		now, err := readSocketFile(ns, file)
		return slices.ContainsFunc(now, func(s socketFile) bool { return s.inode == inode }), err
	}
	var all []snapshot.Listener
	now := sync.OnceValues(socketOwners)
	for _, s := range sockets {
		if s.state != state || s.local.Port() == 0 {
			continue
		}
		p := d.owner(s.inode)
		if p.pid == 0 { // it may be younger than what is known of sockets
			younger, unread := now()
			if p = younger[s.inode]; p.pid == 0 && unread != nil {
				return nil, fmt.Errorf("%s: find the process of the socket of %s: %w", file, s.local, unread)
			}
		}
		v6only, transparent := true, false // for a socket of the kernel, which no process has open (udp_sock_create6, svc_create_socket)
		if p.pid != 0 {
			p, v6only, transparent, err = askSocket(p, s.inode, ipv6, isOpen)
			if errors.Is(err, errClosed) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("%s: options of the socket of %s: %w", file, s.local, err)
			}
		}
		l := snapshot.Listener{Protocol: protocol, Process: p.name, Owner: p.owner, Transparent: transparent}
		all = append(all, bound(l, s.local.Addr(), s.local.Port(), v6only)...)
	}
	return all, nil
}

func readSocketFile(ns *netns.Namespace, file string) (all []socketFile, err error) {
	err = ns.Do(func() error {
		text, err := limitio.ReadFile(file, maxSocketFile)
		if err != nil {
			return err
		}
		if all, err = parseSocketFile(string(text)); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		return nil
	})
	return all, err
}

// parseSocketFile reads what proc_pid_net(5) has of sockets: a line of names, then lines whose second field is the local address, of words
// in the order of the machine, and port, the fourth the state, the tenth the inode number (tcp4_seq_show, udp6_seq_show).
func parseSocketFile(text string) ([]socketFile, error) {
	_, text, _ = strings.Cut(text, "\n")
	var all []socketFile
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 10 {
			return nil, fmt.Errorf("%q is no socket", line)
		}
		local, err := socketAddress(fields[1])
		if err != nil {
			return nil, err
		}
		state, err := strconv.ParseUint(fields[3], 16, 8)
		if err != nil {
			return nil, err
		}
		inode, err := strconv.ParseUint(fields[9], 10, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, socketFile{local, uint8(state), uint32(inode)}) // socket diagnosis has 32 bits of it, too
	}
	return all, nil
}

func socketAddress(text string) (netip.AddrPort, error) {
	address, number, _ := strings.Cut(text, ":")
	port, err := strconv.ParseUint(number, 16, 16)
	words, err2 := hex.DecodeString(address)
	if err != nil || err2 != nil || len(words) != 4 && len(words) != 16 {
		return netip.AddrPort{}, fmt.Errorf("%q is no address and port of a socket", text)
	}
	for i := 0; i < len(words); i += 4 {
		binary.NativeEndian.PutUint32(words[i:], binary.BigEndian.Uint32(words[i:]))
	}
	a, _ := netip.AddrFromSlice(words)
	return netip.AddrPortFrom(a, uint16(port)), nil
}

// errClosed says of a socket that it was there a moment ago.
var errClosed = errors.New("the socket was closed meanwhile")

// maxAsked is how often another process is looked for that has a socket open.
const maxAsked = 5

// askSocket asks a socket by a process that has it open, or by another one where that has not: a child has its parent's sockets from fork(2)
// to execve(2). It returns the process, and errClosed for a socket that is not open any more.
func askSocket(p process, inode uint32, ipv6 bool, isOpen func(inode uint32) (bool, error)) (of process, v6only, transparent bool, err error) {
	for range maxAsked {
		if v6only, transparent, err = socketOptions(p, inode, ipv6); !errors.Is(err, errClosed) {
			return p, v6only, transparent, err
		}
		owners, unread := socketOwners()
		if p = owners[inode]; p.pid != 0 {
			continue
		}
		open, err := isOpen(inode)
		switch {
		case err == nil && !open:
			return p, false, false, errClosed
		case err == nil && unread != nil:
			err = fmt.Errorf("find its process: %w", unread)
		}
		return p, true, false, err
	}
	return p, false, false, fmt.Errorf("%d processes had it open, and closed it", maxAsked)
}

// socketOptions asks a socket for IPV6_V6ONLY and IP_TRANSPARENT, by a descriptor of it that is closed again at once (pidfd_getfd(2), Linux
// 5.6). That it is the socket meant shows in its inode number: the process may have closed it, or ended.
func socketOptions(p process, inode uint32, ipv6 bool) (v6only, transparent bool, err error) {
	pid, err := unix.PidfdOpen(p.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, false, errClosed
	}
	if err != nil {
		return false, false, os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(pid)
	fd, err := unix.PidfdGetfd(pid, p.fd, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EBADF) {
		return false, false, errClosed
	}
	if err != nil {
		return false, false, os.NewSyscallError("pidfd_getfd", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK || uint32(st.Ino) != inode {
		return false, false, errClosed
	}
	if !ipv6 {
		t, err := unix.GetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT)
		return false, t != 0, os.NewSyscallError("getsockopt", err)
	}
	only, err := unix.GetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY)
	if err != nil {
		return false, false, os.NewSyscallError("getsockopt", err)
	}
	t, err := unix.GetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT)
	return only != 0, t != 0, os.NewSyscallError("getsockopt", err)
}
