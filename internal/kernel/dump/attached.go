package dump

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
)

// Where tc's filters are (include/uapi/linux/pkt_sched.h: TC_H_CLSACT with TC_H_MIN_INGRESS and TC_H_MIN_EGRESS), where those of tcx are
// (include/uapi/linux/bpf.h: BPF_TCX_INGRESS, BPF_TCX_EGRESS), and how the kernel is asked for those (BPF_PROG_QUERY).
const (
	tcIngress  = 0xfffffff2
	tcEgress   = 0xfffffff3
	tcxIngress = 46
	tcxEgress  = 47
	progQuery  = 16
	tcmsgSize  = 20 // struct tcmsg (include/uapi/linux/rtnetlink.h)
	tcaKind    = 1  // TCA_KIND
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
			in, err := atSide(conn, l, false, tcIngress, tcxIngress)
			if err != nil {
				return err
			}
			out, err := atSide(conn, l, true, tcEgress, tcxEgress)
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
func atSide(conn *netlink.Conn, l wireLink, out bool, parent, tcx uint32) (found []capture.Attachment, err error) {
	kind, err := filterKind(conn, l.Index, parent)
	if err != nil {
		return nil, fmt.Errorf("filters of tc at %s: %w", l.Link, err)
	}
	if kind != "" {
		found = append(found, capture.Attachment{Link: l.Link, Out: out, What: "a filter of tc (" + kind + ")"})
	}
	n, err := programs(l.Index, tcx)
	if err != nil {
		return nil, fmt.Errorf("programs at %s: %w", l.Link, err)
	}
	if n > 0 {
		found = append(found, capture.Attachment{Link: l.Link, Out: out, What: "a BPF program (tcx)"})
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

// programs counts the programs at a link of this thread's namespace; 0 where the kernel does not know the kind (before Linux 6.6) or has no
// BPF, and where the link has gone.
func programs(index int, kind uint32) (uint32, error) {
	query := struct { // union bpf_attr, query
		target, kind, flags, attachFlags uint32
		ids                              uint64
		count, _                         uint32
		progFlags, linkIDs, linkFlags    uint64
		revision                         uint64 // written whatever size is said (bpf_mprog_query)
	}{target: uint32(int32(index)), kind: kind}
	_, _, errno := unix.Syscall(unix.SYS_BPF, progQuery, uintptr(unsafe.Pointer(&query)), unsafe.Sizeof(query))
	switch errno {
	case 0:
		return query.count, nil
	case unix.EINVAL, unix.ENOSYS, unix.ENODEV:
		return 0, nil
	}
	return 0, os.NewSyscallError("bpf", errno)
}
