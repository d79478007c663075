package verify

import (
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// addAccounts makes accounting objects (nfacct(8)) in the namespace that the thread is in.
func addAccounts(names []string) error {
	const newAccount, name = 0, 1 // NFNL_MSG_ACCT_NEW, NFACCT_NAME (include/uapi/linux/netfilter/nfnetlink_acct.h)
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, n := range names {
		e := netlink.NewAttributeEncoder()
		e.String(name, n)
		attributes, err := e.Encode()
		if err != nil {
			return err
		}
		m := netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_ACCT<<8 | newAccount, Flags: netlink.Request | netlink.Acknowledge | netlink.Create},
			Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, attributes...),
		}
		if _, err := c.Execute(m); err != nil {
			return fmt.Errorf("accounting object %s: %w", n, err)
		}
	}
	return nil
}
