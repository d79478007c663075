package serviceproxy

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/node/proxy/iptables"
)

// ensureCounters creates the accounting objects that rules of today count with. A kernel without them is no fault: the rules then do
// without.
func ensureCounters() error {
	zero := make([]byte, 8)
	for _, name := range iptables.CounterNames() {
		_, err := accounting(acctNew, netlink.Acknowledge|netlink.Create, name,
			netlink.Attribute{Type: acctPackets, Data: zero}, netlink.Attribute{Type: acctBytes, Data: zero})
		if err != nil && !errors.Is(err, unix.EBUSY) { // EBUSY: it is there
			return fmt.Errorf("create accounting object %s: %w", name, err)
		}
	}
	return nil
}

// packetsOf reads how many packets an accounting object has counted. It asks for all: an answer about one says that more will come, which
// never does.
func packetsOf(name string) func() (float64, error) {
	return func() (float64, error) {
		answers, err := accounting(acctGet, netlink.Dump, name)
		for _, answer := range answers {
			if is, packets := readCounter(answer); is == name {
				return float64(packets), nil
			}
		}
		return 0, fmt.Errorf("read accounting object %s: %w", name, cmp.Or(err, error(unix.ENOENT)))
	}
}

func readCounter(m netlink.Message) (name string, packets uint64) {
	if len(m.Data) < nfgenmsg {
		return "", 0
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[nfgenmsg:])
	if err != nil {
		return "", 0
	}
	attributes.ByteOrder = binary.BigEndian
	for attributes.Next() {
		switch attributes.Type() {
		case acctName:
			name = attributes.String()
		case acctPackets:
			packets = attributes.Uint64()
		}
	}
	return name, packets
}

// nfgenmsg is the length of struct nfgenmsg: family, version, resource id.
const nfgenmsg = 4

// Of linux/netfilter/nfnetlink_acct.h.
const (
	acctNew, acctGet                 = 0, 1
	acctName, acctPackets, acctBytes = 1, 2, 3
)

// accounting asks the kernel for something about an accounting object.
func accounting(what netlink.HeaderType, flags netlink.HeaderFlags, name string, more ...netlink.Attribute) ([]netlink.Message, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	data, err := netlink.MarshalAttributes(append([]netlink.Attribute{{Type: acctName, Data: append([]byte(name), 0)}}, more...))
	if err != nil {
		return nil, err
	}
	return conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_ACCT<<8 | what, Flags: netlink.Request | flags},
		Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}, data...),
	})
}
