package dump

import (
	"fmt"

	"github.com/cilium/ebpf"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/bpf"
	"packetwalk.dev/internal/kernel/netns"
)

// side is a place at a link that BPF programs are attached to.
type side struct {
	attach ebpf.AttachType
	name   string
	out    bool
}

var tcxSides = []side{{ebpf.AttachTCXIngress, "tcx", false}, {ebpf.AttachTCXEgress, "tcx", true}}

// netkitSides are those of the primary end of a netkit pair: what it sends has its programs, and what it gets has had the peer's
// (drivers/net/netkit.c, netkit_xmit). The kernel does not tell them at the peer.
var netkitSides = append([]side{{ebpf.AttachNetkitPeer, "netkit", false}, {ebpf.AttachNetkitPrimary, "netkit", true}}, tcxSides...)

// attached lists the programs of tcx and netkit at a namespace's links.
func attached(ns *netns.Namespace) ([]capture.Attachment, error) {
	conn, links, err := linksOf(ns)
	if err != nil {
		return nil, err
	}
	conn.Close()
	var all []capture.Attachment
	err = ns.Do(func() error { // where the indexes of links are those of the namespace
		for _, l := range links {
			sides := tcxSides
			if l.kind == "netkit" {
				sides = netkitSides
			}
			for _, s := range sides {
				programs, err := bpf.AtLink(l.Index, s.attach, s.name)
				if err != nil {
					return fmt.Errorf("list programs of %s at %s: %w", s.name, l.Link, err)
				}
				for _, p := range programs {
					all = append(all, capture.Attachment{Link: l.Link, Out: s.out, What: "a BPF program (" + s.name + ")", Program: p})
				}
			}
		}
		return nil
	})
	return all, err
}
