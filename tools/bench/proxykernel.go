package main

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/procstat"
	"packetwalk.dev/internal/kernel/netns"
)

// kernelWatch hears of what is written to a namespace's nf_tables, by nft or by iptables-nft, and notes when an address first comes in it:
// in whatever form, the four bytes of an endpoint's address are in the rule or element that leads to it. The kernel tells of a transaction
// when it is in force.
type kernelWatch struct {
	conn *netlink.Conn
	mu   sync.Mutex
	want map[uint32]chan time.Time
}

func watchKernel(ns *netns.Namespace) (*kernelWatch, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1), NetNS: ns.FD()})
	if err != nil {
		return nil, err
	}
	k := &kernelWatch{conn: conn, want: map[uint32]chan time.Time{}}
	if err := conn.SetReadBuffer(256 << 20); err != nil {
		_ = conn.Close()
		return nil, err
	}
	go k.listen()
	return k, nil
}

func (k *kernelWatch) close() { _ = k.conn.Close() }

// expect gives the time at which the address is written, once it is.
func (k *kernelWatch) expect(a netip.Addr) <-chan time.Time {
	c := make(chan time.Time, 1)
	k.mu.Lock()
	defer k.mu.Unlock()
	b := a.As4()
	k.want[binary.BigEndian.Uint32(b[:])] = c
	return c
}

func (k *kernelWatch) listen() {
	for {
		messages, err := k.conn.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			continue // what was not heard of counts as lost
		}
		if err != nil {
			return
		}
		now := time.Now()
		k.mu.Lock()
		for i := range messages {
			k.look(messages[i].Data, now)
		}
		k.mu.Unlock()
	}
}

func (k *kernelWatch) look(data []byte, now time.Time) {
	first := proxyChanged.As4()[0]
	for i := 0; i+4 <= len(data); i++ {
		if data[i] != first {
			continue
		}
		a := binary.BigEndian.Uint32(data[i:])
		if c := k.want[a]; c != nil {
			c <- now
			delete(k.want, a)
		}
	}
}

// cpuTime returns the processor time of a process, with the children that it waited for.
func cpuTime(pid int) time.Duration {
	stat, _ := procstat.Read("/proc/" + strconv.Itoa(pid)) // of one that has ended: zero
	return stat.CPU
}

// slab returns the kernel's own memory in MB, when it has come to rest.
func slab() float64 {
	last := 0.0
	for range 30 {
		now := meminfo("Slab")
		if d := now - last; d < 0.3 && d > -0.3 {
			return now
		}
		last = now
		time.Sleep(700 * time.Millisecond)
	}
	return last
}

func meminfo(name string) float64 {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name+":" {
			kb, _ := strconv.ParseFloat(f[1], 64)
			return kb / 1024
		}
	}
	return 0
}
