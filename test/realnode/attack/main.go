// Command attack tries one thing that a pod must not be able to do to the machine or its lab. Its status is 0 where it can.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attacks are those that it knows. None changes anything that others have.
var attacks = map[string]func(args []string) error{
	"list-links":  listLinks,
	"delete-link": deleteLink,
	"add-key":     addKey,
	"vsock":       func([]string) error { return closed(unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)) },
	"io-uring": func([]string) error {
		fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
		if errno == unix.EFAULT { // past the filter, to the parameters that it lacks
			return nil
		}
		return closed(int(fd), errno)
	},
}

func main() {
	attack := attacks[os.Args[1]]
	if err := attack(os.Args[2:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func closed(fd int, err error) error {
	if err == nil || errors.Is(err, unix.Errno(0)) {
		err = unix.Close(fd)
	}
	return err
}

// maxID is the highest id of a network namespace that is tried.
const maxID = 15

// inOthers sends a request about links to each network namespace that this one has an id for (rtnetlink(7), IFLA_TARGET_NETNSID), as a veth
// pair to a node gives one. It succeeds where one of them does what reached reports.
func inOthers(kind, flags int, reached func([][]byte, error) bool, attributes ...*nl.RtAttr) error {
	var all []error
	for id := range uint32(maxID + 1) {
		request := nl.NewNetlinkRequest(kind, flags)
		request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		request.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(id)))
		for _, a := range attributes {
			request.AddData(a)
		}
		answer, err := request.Execute(unix.NETLINK_ROUTE, 0)
		if reached(answer, err) {
			return nil
		}
		all = append(all, fmt.Errorf("namespace %d: %d answers, %w", id, len(answer), err))
	}
	return errors.Join(all...)
}

// listLinks lists the links of other namespaces.
func listLinks([]string) error {
	return inOthers(unix.RTM_GETLINK, unix.NLM_F_DUMP, func(links [][]byte, _ error) bool { return len(links) > 0 })
}

// deleteLink deletes a link of another namespace, by a name that none has: the right to delete is checked before the name.
func deleteLink([]string) error {
	return inOthers(unix.RTM_DELLINK, unix.NLM_F_ACK, func(_ [][]byte, err error) bool { return errors.Is(err, unix.ENODEV) },
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("no-such-link")))
}

// addKey adds a key to the keyring of the process's user.
func addKey(args []string) error {
	_, err := unix.AddKey("user", args[0], []byte("of a pod"), unix.KEY_SPEC_USER_KEYRING)
	return err
}
