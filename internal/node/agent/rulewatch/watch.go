// Package rulewatch listens to the kernel's notices of changes of rules.
package rulewatch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/proxy/nftables"
)

// notice says what the kernel tells about one transaction of its packet filter's rules.
type notice struct {
	pid    int  // of the process that made it, as the machine's first process namespace counts
	port   int  // of the socket that it came by: a process's first has the process's number in its own namespace, if that is free
	damage bool // of the iptables families, a rule, chain or table was deleted, or something was added to what is the service proxy's
}

// retry is how long the watcher waits before it listens again.
const retry = 5 * time.Second

// Watcher hears of rules that other programs delete or change.
type Watcher struct {
	nft      *ruleset.NFTables
	programs []*iptablescmd.Programs
	damaged  chan struct{}
}

// New returns a watcher that ignores changes by these writers.
func New(nft *ruleset.NFTables, programs []*iptablescmd.Programs) *Watcher {
	return &Watcher{nft: nft, programs: programs, damaged: make(chan struct{}, 1)}
}

// Damaged returns a channel that receives after damage; several make one.
func (w *Watcher) Damaged() <-chan struct{} { return w.damaged }

// Run listens until the context ends. Faults say that deleted rules come back within a period only, while it cannot.
func (w *Watcher) Run(ctx context.Context, faults *report.Faults, period time.Duration) {
	const what = "watch the kernel's rules"
	note := func(n notice) {
		if w.isOwnChange(n) {
			return
		}
		select {
		case w.damaged <- struct{}{}:
		default:
		}
	}
	for again := true; again; again = pause.For(ctx, retry) {
		err := watch(ctx, func() {
			faults.Note(what, nil)
			note(notice{}) // changes before the subscription send no notice
		}, note)
		if err != nil {
			faults.Note(what, fmt.Errorf("%w; deleted rules come back within %v", err, period))
		}
	}
}

// isOwnChange reports whether one of the watcher's writers made a change.
func (w *Watcher) isOwnChange(n notice) bool {
	return n.port != 0 && n.port == w.nft.Port() ||
		slices.ContainsFunc(w.programs, func(p *iptablescmd.Programs) bool { return p.IsOwnChange(n.pid, n.port) })
}

// watch calls report after each transaction that may have done damage, until the context ends, and listens once it does. iptables of
// the nft variant is heard; changes by the legacy variant are not, and wait for the periodic comparison.
func watch(ctx context.Context, listens func(), report func(notice)) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return fmt.Errorf("listen for changes of rules: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if stop() {
			_ = conn.Close()
		}
	}()
	listens()
	_ = conn.SetReadBuffer(1 << 20) // more is better, less still works
	var damage bool
	for {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			damage = false
			report(notice{damage: true}) // some were lost: it may have been any
			continue
		case err != nil:
			return fmt.Errorf("listen for changes of rules: %w", err)
		}
		for _, m := range messages {
			if n, ok := readNotice(m, &damage); ok && n.damage {
				report(n)
			}
		}
	}
}

// nfgenmsg is the length of struct nfgenmsg: family, version, resource id.
const nfgenmsg = 4

// readNotice takes one message: damage is remembered until the message that ends the transaction.
func readNotice(m netlink.Message, damage *bool) (notice, bool) {
	if len(m.Data) < nfgenmsg || uint16(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return notice{}, false
	}
	family := m.Data[0]
	attributes, err := netlink.NewAttributeDecoder(m.Data[nfgenmsg:])
	if err != nil {
		attributes = &netlink.AttributeDecoder{}
	}
	attributes.ByteOrder = binary.BigEndian
	switch kind := uint16(m.Header.Type) & 0xff; {
	case kind == unix.NFT_MSG_NEWGEN:
		n := notice{port: int(m.Header.PID), damage: *damage}
		*damage = false
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_PROC_PID {
				n.pid = int(attributes.Uint32())
			}
		}
		return n, true
	case *damage || family != unix.AF_INET && family != unix.AF_INET6:
	case kind == unix.NFT_MSG_DELRULE || kind == unix.NFT_MSG_DELCHAIN || kind == unix.NFT_MSG_DELTABLE:
		*damage = true
	default:
		*damage = ofServices(attributes, kind == unix.NFT_MSG_NEWRULE)
	}
	return notice{}, false
}

// ofServices reports whether a message is about the service proxy's own table, or about a rule of one of its chains in iptables' tables. All
// objects have their table's name first, and rules their chain's next (linux/netfilter/nf_tables.h).
func ofServices(attributes *netlink.AttributeDecoder, rule bool) bool {
	for attributes.Next() {
		switch attributes.Type() {
		case unix.NFTA_RULE_TABLE:
			if attributes.String() == nftables.TableName {
				return true
			}
		case unix.NFTA_RULE_CHAIN:
			if rule && strings.HasPrefix(attributes.String(), "KUBE-") {
				return true
			}
		}
	}
	return false
}
