package dump

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// What include/uapi/linux/xfrm.h has of policies: struct xfrm_userpolicy_info, which begins with a struct xfrm_selector, and behind it
// attributes.
const (
	xfrmGetPolicy    = 0x15 // XFRM_MSG_GETPOLICY
	xfrmPolicySize   = 168
	xfrmSourceAt     = 16 // behind the destination: xfrm_address_t, 16 bytes of which IPv4 has the first 4
	xfrmFamilyAt     = 40
	xfrmLengthsAt    = 42 // prefixlen_d, prefixlen_s
	xfrmProtocolAt   = 44
	xfrmDirectionAt  = 160
	xfrmActionAt     = 161
	xfrmTemplates    = 5  // XFRMA_TMPL: []struct xfrm_user_tmpl
	xfrmMark         = 21 // XFRMA_MARK: value and mask
	xfrmInterface    = 31 // XFRMA_IF_ID
	xfrmTemplateSize = 64
	xfrmOptionalAt   = 50 // of a template
)

// xfrmDirections are enum xfrm_policy_dir's; those of sockets come behind.
var xfrmDirections = []string{"in", "out", "fwd"}

// ipsec lists the policies of IPsec of a namespace that may keep a packet from going on as it is (NETLINK_XFRM; net/xfrm/xfrm_user.c).
func ipsec(ns *netns.Namespace) (all []snapshot.IPsecPolicy, err error) {
	conn, err := netlink.Dial(unix.NETLINK_XFRM, &netlink.Config{NetNS: ns.FD()})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil // a kernel without IPsec
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in %s: %w", ns.Path(), err)
	}
	defer conn.Close()
	answers, err := conn.Execute(netlink.Message{Header: netlink.Header{Type: xfrmGetPolicy, Flags: netlink.Request | netlink.Dump}})
	if err != nil {
		return nil, fmt.Errorf("list policies of IPsec: %w", err)
	}
	for _, a := range answers {
		p, binds, err := ipsecPolicy(a.Data)
		if err != nil {
			return nil, fmt.Errorf("policies of IPsec: %w", err)
		}
		if binds {
			all = append(all, p)
		}
	}
	return all, nil
}

// ipsecPolicy reads a policy. It binds where it blocks packets, or asks for their encryption; of those that came in: that they were
// encrypted. Those of links of kind xfrm and those of sockets bind nothing else.
func ipsecPolicy(data []byte) (p snapshot.IPsecPolicy, binds bool, err error) {
	if len(data) < xfrmPolicySize {
		return p, false, errors.New("one is too short")
	}
	direction := int(data[xfrmDirectionAt])
	if direction >= len(xfrmDirections) {
		return p, false, nil
	}
	p.Direction, p.Protocol = xfrmDirections[direction], packet.Protocol(data[xfrmProtocolAt])
	ipv6 := binary.NativeEndian.Uint16(data[xfrmFamilyAt:]) == unix.AF_INET6
	p.Destination = selected(data, data[xfrmLengthsAt], ipv6)
	p.Source = selected(data[xfrmSourceAt:], data[xfrmLengthsAt+1], ipv6)
	if !p.Destination.IsValid() || !p.Source.IsValid() {
		return p, false, errors.New("one has no addresses")
	}
	binds = data[xfrmActionAt] != 0 // XFRM_POLICY_BLOCK
	ad, err := netlink.NewAttributeDecoder(data[xfrmPolicySize:])
	if err != nil {
		return p, false, err
	}
	for ad.Next() {
		switch value := ad.Bytes(); {
		case ad.Type() == xfrmInterface && len(value) >= 4 && binary.NativeEndian.Uint32(value) != 0:
			return p, false, nil
		case ad.Type() == xfrmMark && len(value) >= 8:
			p.Mark, p.Mask = binary.NativeEndian.Uint32(value), binary.NativeEndian.Uint32(value[4:])
		case ad.Type() == xfrmTemplates:
			for ; len(value) >= xfrmTemplateSize; value = value[xfrmTemplateSize:] {
				binds = binds || p.Direction == "out" || value[xfrmOptionalAt] == 0
			}
		}
	}
	return p, binds, ad.Err()
}

// selected returns a prefix of a selector.
func selected(address []byte, bits uint8, ipv6 bool) netip.Prefix {
	a := netip.AddrFrom16([16]byte(address[:16]))
	if !ipv6 {
		a = netip.AddrFrom4([4]byte(address[:4]))
	}
	return netip.PrefixFrom(a, int(bits)).Masked()
}
