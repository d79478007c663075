package dump

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/bpf"
	"packetwalk.dev/internal/kernel/netns"
)

// Numbers of tc's netlink messages (include/uapi/linux/rtnetlink.h, pkt_sched.h, pkt_cls.h).
const (
	tcmsgSize        = 20 // struct tcmsg
	tcaKind          = 1
	tcaOptions       = 2
	tcaDumpInvisible = 10
	tcaBPFID         = 11 // in the options of a filter of kind bpf

	tcRoot    = 0xffffffff
	tcIngress = 0xfffffff2 // filters of qdiscs clsact and ingress
	tcEgress  = 0xfffffff3 // filters of qdisc clsact
)

// qdiscs lists the qdiscs of a namespace's links with their first filters.
func qdiscs(ns *netns.Namespace) ([]capture.Qdisc, error) {
	conn, links, err := linksOf(ns)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	names := map[int]string{}
	for _, l := range links {
		names[l.Index] = l.Link
	}
	invisible := binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, 4), tcaDumpInvisible)
	found, err := listTC(conn, unix.RTM_GETQDISC, 0, 0, invisible...)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil // a kernel without tc
	}
	if err != nil {
		return nil, fmt.Errorf("list qdiscs of %s: %w", ns.Path(), err)
	}
	var all []capture.Qdisc
	filtered := map[int]bool{} // links whose first filter for packets that leave is found
	for _, o := range found {
		q := capture.Qdisc{Link: names[o.index], Kind: o.kind, Handle: handleText(o.handle), Parent: handleText(o.parent), Settings: o.settings()}
		if q.Link == "" {
			continue // of a link that was made meanwhile
		}
		parents, err := o.filterParents(conn)
		if err != nil {
			return nil, fmt.Errorf("list classes of qdisc %s %s of %s: %w", q.Kind, q.Handle, q.Link, err)
		}
		for _, parent := range parents {
			if parent != tcIngress && filtered[o.index] {
				continue
			}
			f, err := firstFilter(conn, o.index, parent)
			if err != nil {
				return nil, fmt.Errorf("list filters of qdisc %s %s of %s: %w", q.Kind, q.Handle, q.Link, err)
			}
			if f != nil {
				f.Out = parent != tcIngress
				filtered[o.index] = filtered[o.index] || f.Out
				q.Filters = append(q.Filters, *f)
			}
		}
		all = append(all, q)
	}
	return all, nil
}

// filterParents returns the handles at which the qdisc may have filters.
func (o *tcObject) filterParents(conn *netlink.Conn) ([]uint32, error) {
	kind := capture.QdiscKinds[o.kind]
	switch {
	case o.kind == "ingress":
		return []uint32{tcIngress}, nil
	case o.kind == "clsact":
		return []uint32{tcIngress, tcEgress}, nil
	case !kind.HasFilters, o.handle == 0 && o.parent != tcRoot:
		return nil, nil
	case !kind.HasClasses:
		return []uint32{o.handle}, nil
	}
	parents := []uint32{o.handle}
	classes, err := listTC(conn, unix.RTM_GETTCLASS, o.index, 0)
	for _, c := range classes {
		if c.handle>>16 == o.handle>>16 {
			parents = append(parents, c.handle)
		}
	}
	return parents, err
}

// firstFilter returns the filter with the lowest preference at a qdisc or class, nil if there is none.
func firstFilter(conn *netlink.Conn, index int, parent uint32) (*capture.Filter, error) {
	all, err := listTC(conn, unix.RTM_GETTFILTER, index, parent)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil, nil // the link, the qdisc or the class has gone
	}
	if err != nil || len(all) == 0 {
		return nil, err
	}
	first := slices.MinFunc(all, func(a, b tcObject) int { return int(a.info>>16) - int(b.info>>16) })
	f := &capture.Filter{Kind: first.kind, Parent: handleText(parent), Preference: first.info >> 16}
	for _, o := range all { // of one filter the kernel sends several messages
		if id, ok := o.option(tcaBPFID, 0); ok && o.info == first.info && o.kind == "bpf" {
			f.Program = bpf.Program("tc", id)
			break
		}
	}
	return f, nil
}

// tcObject is a qdisc, a class or a filter.
type tcObject struct {
	index                int
	handle, parent, info uint32
	kind                 string
	options              []byte
}

// settings returns the settings in capture.QdiscKinds.
func (o *tcObject) settings() map[string]uint32 {
	all := map[string]uint32{}
	for _, s := range capture.QdiscKinds[o.kind].Settings {
		if value, ok := o.option(s.Attribute, s.Offset); ok {
			all[s.Name] = value
		}
	}
	return all
}

// option returns an attribute of the options, or with attribute 0 a field of the struct that they are.
func (o *tcObject) option(attribute uint16, offset int) (value uint32, ok bool) {
	if attribute == 0 {
		if len(o.options) < offset+4 {
			return 0, false
		}
		return binary.NativeEndian.Uint32(o.options[offset:]), true
	}
	ad, err := netlink.NewAttributeDecoder(o.options)
	for err == nil && ad.Next() {
		if ad.Type() == attribute && len(ad.Bytes()) == 4 {
			return ad.Uint32(), true
		}
	}
	return 0, false
}

// listTC asks for qdiscs, classes or filters.
func listTC(conn *netlink.Conn, kind netlink.HeaderType, index int, parent uint32, attributes ...byte) (all []tcObject, err error) {
	data := make([]byte, tcmsgSize)
	binary.NativeEndian.PutUint32(data[4:], uint32(int32(index)))
	binary.NativeEndian.PutUint32(data[12:], parent)
	answers, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Dump}, Data: append(data, attributes...),
	})
	if err != nil {
		return nil, err
	}
	for _, a := range answers {
		if len(a.Data) < tcmsgSize {
			return nil, fmt.Errorf("answer of %d bytes is too short", len(a.Data))
		}
		word := func(at int) uint32 { return binary.NativeEndian.Uint32(a.Data[at:]) }
		o := tcObject{index: int(int32(word(4))), handle: word(8), parent: word(12), info: word(16)}
		ad, err := netlink.NewAttributeDecoder(a.Data[tcmsgSize:])
		if err != nil {
			return nil, err
		}
		for ad.Next() {
			switch ad.Type() {
			case tcaKind:
				o.kind = ad.String()
			case tcaOptions:
				o.options = ad.Bytes()
			}
		}
		if err := ad.Err(); err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// handleText returns a handle as tc(8) prints it.
func handleText(h uint32) string {
	switch {
	case h == tcRoot:
		return "root"
	case h&0xffff == 0:
		return fmt.Sprintf("%x:", h>>16)
	}
	return fmt.Sprintf("%x:%x", h>>16, h&0xffff)
}
