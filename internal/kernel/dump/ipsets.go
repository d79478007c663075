package dump

import (
	"context"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
)

// ipsets prints the sets of ipset(8). Where the program fails, the kernel itself says whether there are any.
func (d *Dumper) ipsets(ctx context.Context, ns *netns.Namespace, row capture.Dump, m *modules) capture.Output {
	out := d.command(ctx, ns, row, m)
	if out.Error == "" {
		return out
	}
	if missing, err := m.firstMissing("ip_set"); missing != "" || err != nil {
		return out
	}
	if some, err := hasIPSets(ns); err == nil && !some {
		return capture.Output{Skipped: "the namespace has no set"}
	}
	return out
}

// hasIPSets reports whether a namespace has sets (include/uapi/linux/netfilter/ipset/ip_set.h).
func hasIPSets(ns *netns.Namespace) (bool, error) {
	const (
		list     = 7 // IPSET_CMD_LIST
		protocol = 1 // IPSET_ATTR_PROTOCOL
		version  = 6 // IPSET_PROTOCOL_MIN
		patience = 10 * time.Second
	)
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.FD()})
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return false, err
	}
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: protocol, Data: []byte{version}}})
	if err != nil {
		return false, err
	}
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_IPSET<<8 | list, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0}, attributes...),
	})
	return len(answers) > 0, err
}
