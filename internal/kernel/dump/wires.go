package dump

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
)

// linksOf lists the namespace's links, and gives the socket for more questions about them, which the caller closes.
func linksOf(ns *netns.Namespace) (*netlink.Conn, []wireLink, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: ns.FD()})
	if err != nil {
		return nil, nil, fmt.Errorf("open netlink socket in %s: %w", ns.Path(), err)
	}
	messages, err := conn.Execute(linkRequest(netlink.Dump, 0))
	links := make([]wireLink, len(messages))
	for i := 0; err == nil && i < len(messages); i++ {
		links[i], err = readLink(messages[i].Data)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("list links of %s: %w", ns.Path(), err), conn.Close())
	}
	return conn, links, nil
}

// wires lists the namespace's veths and netkits, and what is at their other ends: the kernel numbers the namespaces that a namespace has links to
// (IFLA_LINK_NETNSID), tells the number of a namespace that one holds open (RTM_GETNSID), and answers questions about links over there by
// that number (IFLA_TARGET_NETNSID).
func (d *Dumper) wires(ns *netns.Namespace) ([]capture.Wire, error) {
	conn, links, err := linksOf(ns)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var wires []capture.Wire
	own := map[int]string{}
	for _, l := range links {
		own[l.Index] = l.Link
		if l.kind == "veth" || l.kind == "netkit" {
			wires = append(wires, l.Wire)
		}
	}
	known := d.numbers(conn, wires)
	for i := range wires {
		w := &wires[i]
		if w.NSID == nil {
			w.NetNS, w.PeerLink = ns.Inode(), own[w.PeerIndex]
			continue
		}
		at := known[*w.NSID]
		w.NetNS, w.Host = at.inode, at.host
		// Without rights over there, or on an old kernel, the name stays unknown: the pair of indexes still tells.
		answer, err := conn.Execute(linkRequest(0, w.PeerIndex, attribute(unix.IFLA_TARGET_NETNSID, *w.NSID)...))
		if err == nil && len(answer) == 1 {
			if l, err := readLink(answer[0].Data); err == nil {
				w.PeerLink = l.Link
			}
		}
	}
	slices.SortFunc(wires, func(a, b capture.Wire) int { return cmp.Compare(a.Index, b.Index) })
	return wires, nil
}

// hostNamespace names the host that a namespace belongs to.
type hostNamespace struct {
	host  string
	inode uint64
}

// numbers finds which of the known namespaces have which number, as seen from the namespace of conn, until every wire's is found.
func (d *Dumper) numbers(conn *netlink.Conn, wires []capture.Wire) map[int]hostNamespace {
	wanted := map[int]bool{}
	for _, w := range wires {
		if w.NSID != nil {
			wanted[*w.NSID] = true
		}
	}
	found := map[int]hostNamespace{}
	for host, path := range d.Hosts {
		if len(found) == len(wanted) {
			break
		}
		file, err := os.Open(path)
		if err != nil {
			continue // gone meanwhile
		}
		var st unix.Stat_t
		nsid, ok := numberOf(conn, file)
		if ok && wanted[nsid] && unix.Fstat(int(file.Fd()), &st) == nil {
			found[nsid] = hostNamespace{host, st.Ino}
		}
		file.Close()
	}
	return found
}

// numberOf asks for the number of an open namespace (include/uapi/linux/net_namespace.h); false where it has none.
func numberOf(conn *netlink.Conn, file *os.File) (int, bool) {
	data := append(make([]byte, unix.SizeofRtGenmsg), 0, 0, 0) // padded to 4 bytes
	data = append(data, attribute(unix.NETNSA_FD, int(file.Fd()))...)
	answer, err := conn.Execute(netlink.Message{Header: netlink.Header{Type: unix.RTM_GETNSID, Flags: netlink.Request}, Data: data})
	if err != nil || len(answer) != 1 || len(answer[0].Data) < 4 {
		return 0, false
	}
	number := -1
	ad, err := netlink.NewAttributeDecoder(answer[0].Data[4:])
	for err == nil && ad.Next() {
		if ad.Type() == unix.NETNSA_NSID {
			number = int(ad.Int32())
		}
	}
	return number, number >= 0
}

// attribute returns a netlink attribute of 32 bits.
func attribute(kind uint16, value int) []byte {
	b := binary.NativeEndian.AppendUint16(nil, 8)
	b = binary.NativeEndian.AppendUint16(b, kind)
	return binary.NativeEndian.AppendUint32(b, uint32(int32(value)))
}

// linkRequest asks for a link by its index, or for all (struct ifinfomsg, rtnetlink(7)).
func linkRequest(flags netlink.HeaderFlags, index int, attributes ...byte) netlink.Message {
	data := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(data[4:], uint32(int32(index)))
	return netlink.Message{Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | flags}, Data: append(data, attributes...)}
}

type wireLink struct {
	capture.Wire
	kind string
}

func readLink(data []byte) (wireLink, error) {
	if len(data) < unix.SizeofIfInfomsg {
		return wireLink{}, fmt.Errorf("answer of %d bytes is too short", len(data))
	}
	var l wireLink
	l.Index = int(int32(binary.NativeEndian.Uint32(data[4:])))
	ad, err := netlink.NewAttributeDecoder(data[unix.SizeofIfInfomsg:])
	if err != nil {
		return wireLink{}, err
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_IFNAME:
			l.Link = ad.String()
		case unix.IFLA_LINK:
			l.PeerIndex = int(ad.Int32())
		case unix.IFLA_LINK_NETNSID:
			n := int(ad.Int32())
			l.NSID = &n
		case unix.IFLA_LINKINFO:
			ad.Nested(func(info *netlink.AttributeDecoder) error {
				for info.Next() {
					if info.Type() == unix.IFLA_INFO_KIND {
						l.kind = info.String()
					}
				}
				return info.Err()
			})
		}
	}
	return l, ad.Err()
}
