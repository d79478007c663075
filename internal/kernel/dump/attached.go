package dump

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/bpf"
	"packetwalk.dev/internal/kernel/netns"
)

// Where tc's filters are (include/uapi/linux/pkt_sched.h: TC_H_CLSACT with TC_H_MIN_INGRESS and TC_H_MIN_EGRESS).
const (
	tcIngress = 0xfffffff2
	tcEgress  = 0xfffffff3
	tcmsgSize = 20 // struct tcmsg (include/uapi/linux/rtnetlink.h)
	tcaKind   = 1  // TCA_KIND
	tcaOption = 2  // TCA_OPTIONS
	tcaBPFID  = 11 // TCA_BPF_ID (include/uapi/linux/pkt_cls.h)
)

// attached lists what is at links beside rules and can decide about packets: filters of tc, and programs of tcx.
func attached(ns *netns.Namespace) ([]capture.Attachment, error) {
	conn, links, err := linksOf(ns)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var all []capture.Attachment
	err = ns.Do(func() error { // which tcx is asked in
		for _, l := range links {
			in, err := atSide(conn, l, false, tcIngress, ebpf.AttachTCXIngress)
			if err != nil {
				return err
			}
			out, err := atSide(conn, l, true, tcEgress, ebpf.AttachTCXEgress)
			if err != nil {
				return err
			}
			all = slices.Concat(all, in, out)
		}
		return nil
	})
	return all, err
}

// atSide lists what is at one side of a link of this thread's namespace.
func atSide(conn *netlink.Conn, l wireLink, out bool, parent uint32, tcx ebpf.AttachType) (found []capture.Attachment, err error) {
	kind, id, err := filterKind(conn, l.Index, parent)
	if err != nil {
		return nil, fmt.Errorf("filters of tc at %s: %w", l.Link, err)
	}
	if kind != "" {
		a := capture.Attachment{Link: l.Link, Out: out, What: "a filter of tc (" + kind + ")"}
		if id != 0 {
			a.Program = bpf.Program("tc", id)
		}
		found = append(found, a)
	}
	programs, err := bpf.AtLink(l.Index, tcx)
	if err != nil {
		return nil, fmt.Errorf("programs at %s: %w", l.Link, err)
	}
	for _, p := range programs {
		found = append(found, capture.Attachment{Link: l.Link, Out: out, What: "a BPF program (tcx)", Program: p})
	}
	return found, nil
}

// filterKind returns the kind of a filter of tc at one side of a link, "" if there is none, and the ID of its BPF program, 0 without one.
func filterKind(conn *netlink.Conn, index int, parent uint32) (kind string, id uint32, err error) {
	data := make([]byte, tcmsgSize)
	binary.NativeEndian.PutUint32(data[4:], uint32(int32(index)))
	binary.NativeEndian.PutUint32(data[12:], parent)
	filters, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETTFILTER, Flags: netlink.Request | netlink.Dump}, Data: data,
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return "", 0, nil // a kernel without tc, or without such a place at the link
	}
	if err != nil {
		return "", 0, err
	}
	for _, f := range filters {
		if len(f.Data) < tcmsgSize {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(f.Data[tcmsgSize:])
		if err != nil {
			return "", 0, err
		}
		for ad.Next() {
			switch ad.Type() {
			case tcaKind:
				kind = ad.String()
			case tcaOption:
				ad.Nested(func(options *netlink.AttributeDecoder) error {
					for options.Next() {
						if options.Type() == tcaBPFID && kind == "bpf" {
							id = options.Uint32()
						}
					}
					return options.Err()
				})
			}
		}
		if err := ad.Err(); err != nil || id != 0 {
			return kind, id, err
		}
	}
	return kind, 0, nil
}
