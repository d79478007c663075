package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// notice is what the kernel tells about one transaction of its packet filter's rules.
type notice struct {
	pid     int  // of the process that made it
	deleted bool // a rule, chain or table of the iptables families was deleted
}

// watchRules calls report after each transaction that deletes something, until the context ends, and listens once it does. iptables of the
// nft variant is heard; changes by the legacy variant are not, and wait for the periodic comparison.
func watchRules(ctx context.Context, listens func(), report func(notice)) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return fmt.Errorf("listen for changes of rules: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if stop() {
			_ = conn.Close()
		}
	}()
	listens()
	_ = conn.SetReadBuffer(1 << 20) // more is better, less still works
	var deleted bool
	for {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			deleted = true // some were lost: it may have been any
			continue
		case err != nil:
			return fmt.Errorf("listen for changes of rules: %w", err)
		}
		for _, m := range messages {
			if n, ok := readNotice(m, &deleted); ok && n.deleted {
				report(n)
			}
		}
	}
}

// ownThread tells whether a change was made by this process, one of whose threads the kernel names.
func ownThread(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", pid))
	return pid != 0 && err == nil
}

// readNotice takes one message: deletions are remembered until the message that ends the transaction.
func readNotice(m netlink.Message, deleted *bool) (notice, bool) {
	const headerLen = 4 // struct nfgenmsg: family, version, resource id
	if len(m.Data) < headerLen || uint16(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return notice{}, false
	}
	switch uint16(m.Header.Type) & 0xff {
	case unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELTABLE:
		if family := m.Data[0]; family == unix.AF_INET || family == unix.AF_INET6 {
			*deleted = true
		}
	case unix.NFT_MSG_NEWGEN:
		n := notice{deleted: *deleted}
		*deleted = false
		attributes, err := netlink.NewAttributeDecoder(m.Data[headerLen:])
		if err != nil {
			return n, true
		}
		attributes.ByteOrder = binary.BigEndian
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_PROC_PID {
				n.pid = int(attributes.Uint32())
			}
		}
		return n, true
	}
	return notice{}, false
}
