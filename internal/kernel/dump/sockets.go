package dump

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/procstat"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// What the socket diagnosis of the kernel says (include/uapi/linux/inet_diag.h, include/net/tcp_states.h).
const (
	tcpListen          = 10
	tcpClose           = 7  // of an UDP socket that is not connected
	inetDiagV6Only     = 11 // INET_DIAG_SKV6ONLY
	inetDiagSockopt    = 22 // INET_DIAG_SOCKOPT
	sockoptTransparent = 1 << 5
	diagRequestSize    = 56 // struct inet_diag_req_v2
	diagMessageSize    = 72 // struct inet_diag_msg
)

// listeners lists the namespace's TCP sockets that listen and its UDP sockets that are not connected. A socket of IPv6 that takes IPv4,
// too, stands there twice.
func (d *Dumper) listeners(ns *netns.Namespace, m *modules) ([]snapshot.Listener, error) {
	var all []snapshot.Listener
	for _, q := range []struct {
		protocol packet.Protocol
		state    uint8
		module   string
	}{{packet.TCP, tcpListen, "tcp_diag"}, {packet.UDP, tcpClose, "udp_diag"}} {
		missing, err := m.firstMissing("inet_diag", q.module)
		list := d.listenersByDiagnosis
		if missing != "" || err != nil {
			list = d.listenersByFile
		}
		for _, ipv6 := range []bool{false, true} {
			some, err := list(ns, q.protocol, q.state, ipv6)
			if err != nil {
				return nil, fmt.Errorf("list %s sockets of %s: %w", q.protocol, ns.Path(), err)
			}
			all = append(all, some...)
		}
	}
	slices.SortFunc(all, func(a, b snapshot.Listener) int {
		if a.Protocol != b.Protocol {
			return int(a.Protocol) - int(b.Protocol)
		}
		if c := a.Local.Compare(b.Local); c != 0 {
			return c
		}
		return strings.Compare(a.Process, b.Process)
	})
	return all, nil
}

func (d *Dumper) listenersByDiagnosis(ns *netns.Namespace, protocol packet.Protocol, state uint8, ipv6 bool) ([]snapshot.Listener, error) {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, &netlink.Config{NetNS: ns.FD()})
	if err != nil {
		return nil, fmt.Errorf("open socket diagnosis: %w", err)
	}
	defer conn.Close()
	request := make([]byte, diagRequestSize)
	request[0], request[1] = unix.AF_INET, uint8(protocol)
	if ipv6 {
		request[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(request[4:], 1<<state)
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump}, Data: request,
	})
	if err != nil {
		return nil, err
	}
	var all []snapshot.Listener
	for _, a := range answers {
		all = append(all, d.readSocket(protocol, a.Data)...)
	}
	return all, nil
}

func (d *Dumper) readSocket(protocol packet.Protocol, data []byte) []snapshot.Listener {
	if len(data) < diagMessageSize {
		return nil
	}
	port := binary.BigEndian.Uint16(data[4:])
	if port == 0 {
		return nil // a socket that is not bound yet
	}
	p := d.owner(binary.NativeEndian.Uint32(data[68:]))
	l := snapshot.Listener{Protocol: protocol, Process: p.name, Owner: p.owner}
	v6only := false
	ad, err := netlink.NewAttributeDecoder(data[diagMessageSize:])
	for err == nil && ad.Next() {
		switch ad.Type() {
		case inetDiagV6Only:
			v6only = len(ad.Bytes()) > 0 && ad.Bytes()[0] != 0
		case inetDiagSockopt:
			l.Transparent = len(ad.Bytes()) > 0 && ad.Bytes()[0]&sockoptTransparent != 0
		}
	}
	if data[0] == unix.AF_INET {
		return bound(l, netip.AddrFrom4([4]byte(data[8:])), port, false)
	}
	return bound(l, netip.AddrFrom16([16]byte(data[8:])), port, v6only)
}

// bound returns a socket at an address, twice where it takes both families' packets.
func bound(l snapshot.Listener, addr netip.Addr, port uint16, v6only bool) []snapshot.Listener {
	l.Local = netip.AddrPortFrom(addr.Unmap(), port)
	if addr != netip.IPv6Unspecified() || v6only {
		return []snapshot.Listener{l}
	}
	both := l
	both.Local = netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	return []snapshot.Listener{both, l}
}

// process is who has a socket open; without a name and an owner for the kernel's own.
type process struct {
	name  string
	owner *snapshot.Owner
	pid   int // 0 for the kernel
	fd    int // of the socket in it
}

// owner returns a process that has the socket open.
func (d *Dumper) owner(inode uint32) process {
	d.owners.Do(func() { d.sockets, _ = socketOwners() }) // no owner means an unknown one
	return d.sockets[inode]
}

// socketOwners finds which process has which socket open, by the socket's inode number. A socket that several share is the first's, which
// is the parent's as a rule. The error says that a process could not be read, which may have any other socket.
func socketOwners() (owners map[uint32]process, unread error) {
	owners = map[uint32]process{}
	entries, unread := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := "/proc/" + e.Name()
		fds, err := os.ReadDir(dir + "/fd")
		if err != nil {
			if unread == nil && !procstat.Ended(err) {
				unread = err
			}
			continue
		}
		var p process
		for _, fd := range fds {
			target, err := os.Readlink(dir + "/fd/" + fd.Name())
			if err != nil && unread == nil && !procstat.Ended(err) {
				unread = err // names and links are under different rules: the kernel's proc_pid_readlink asks for ptrace(2)'s rights
			}
			number, ok := strings.CutPrefix(target, "socket:[")
			if !ok {
				continue
			}
			inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32)
			if err != nil {
				continue
			}
			if p.name == "" {
				status, _ := os.ReadFile(dir + "/status")
				p = readStatus(string(status))
				p.pid = pid
			}
			p.fd, _ = strconv.Atoi(fd.Name())
			if _, taken := owners[uint32(inode)]; !taken {
				owners[uint32(inode)] = p
			}
		}
	}
	return owners, unread
}

// readStatus reads who a process is out of its status (proc(5): "Uid" and "Gid" have the real, effective, saved and file system IDs).
func readStatus(text string) process {
	var p process
	ids := map[string]uint32{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch key {
		case "Name":
			p.name = strings.TrimSpace(value)
		case "Uid", "Gid":
			fields := append([]string{""}, strings.Fields(value)...)
			if id, err := strconv.ParseUint(fields[len(fields)-1], 10, 32); err == nil {
				ids[key] = uint32(id)
			}
		}
	}
	uid, ok1 := ids["Uid"]
	gid, ok2 := ids["Gid"]
	if ok1 && ok2 {
		p.owner = &snapshot.Owner{UID: uid, GID: gid}
	}
	return p
}
