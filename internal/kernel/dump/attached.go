package dump

import (
	"fmt"

	"github.com/cilium/ebpf"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/bpf"
	"packetwalk.dev/internal/kernel/netns"
)

// attached lists the programs of tcx at a namespace's links.
func attached(ns *netns.Namespace) ([]capture.Attachment, error) {
	conn, links, err := linksOf(ns)
	if err != nil {
		return nil, err
	}
	conn.Close()
	var all []capture.Attachment
	err = ns.Do(func() error { // where the indexes of links are those of the namespace
		for _, l := range links {
			for _, side := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
				programs, err := bpf.AtLink(l.Index, side)
				if err != nil {
					return fmt.Errorf("list programs at %s: %w", l.Link, err)
				}
				for _, p := range programs {
					out := side == ebpf.AttachTCXEgress
					all = append(all, capture.Attachment{Link: l.Link, Out: out, What: "a BPF program (tcx)", Program: p})
				}
			}
		}
		return nil
	})
	return all, err
}
