package agent

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/node/serviceproxy"
)

// ensureCounters creates the accounting objects that rules of today count with. A kernel without them is no fault: the rules then do
// without.
func ensureCounters() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("create accounting objects: %w", err)
	}
	defer func() { _ = conn.Close() }()
	for _, name := range serviceproxy.CounterNames() {
		// linux/netfilter/nfnetlink_acct.h
		const newObject, attrName, attrPackets, attrBytes = 0, 1, 2, 3
		zero := make([]byte, 8)
		data, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: attrName, Data: append([]byte(name), 0)}, {Type: attrPackets, Data: zero}, {Type: attrBytes, Data: zero},
		})
		if err != nil {
			return fmt.Errorf("create accounting object %s: %w", name, err)
		}
		_, err = conn.Execute(netlink.Message{
			Header: netlink.Header{
				Type:  netlink.HeaderType(unix.NFNL_SUBSYS_ACCT<<8 | newObject),
				Flags: netlink.Request | netlink.Acknowledge | netlink.Create,
			},
			Data: append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, data...),
		})
		if err != nil && !errors.Is(err, unix.EBUSY) { // EBUSY: it is there
			return fmt.Errorf("create accounting object %s: %w", name, err)
		}
	}
	return nil
}
