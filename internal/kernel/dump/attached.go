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
	kind, err := filterKind(conn, l.Index, parent)
	if err != nil {
		return nil, fmt.Errorf("filters of tc at %s: %w", l.Link, err)
	}
	if kind != "" {
		found = append(found, capture.Attachment{Link: l.Link, Out: out, What: "a filter of tc (" + kind + ")"})
	}
	programs, err := bpf.AtLink(l.Index, tcx)
	if err != nil {
		return nil, fmt.Errorf("programs at %s: %w", l.Link, err)
	}
	for i := range programs {
		found = append(found, capture.Attachment{Link: l.Link, Out: out, What: "a BPF program (tcx)", Program: &programs[i]})
	}
	return found, nil
}

// filterKind is the kind of a filter of tc at one side of a link; "" where there is none.
func filterKind(conn *netlink.Conn, index int, parent uint32) (string, error) {
	data := make([]byte, tcmsgSize)
	binary.NativeEndian.PutUint32(data[4:], uint32(int32(index)))
	binary.NativeEndian.PutUint32(data[12:], parent)
	filters, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETTFILTER, Flags: netlink.Request | netlink.Dump}, Data: data,
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return "", nil // a kernel without tc, or without such a place at the link
	}
	if err != nil {
		return "", err
	}
	for _, f := range filters {
		if len(f.Data) < tcmsgSize {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(f.Data[tcmsgSize:])
		if err != nil {
			return "", err
		}
		for ad.Next() {
			if ad.Type() == tcaKind {
				return ad.String(), nil
			}
		}
	}
	return "", nil
}
