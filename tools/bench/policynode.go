package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
)

// manyNodes are the lab's API and the nodes of its pool "many".
func (l *lab) manyNodes() (*api, []*changedNode, error) {
	a, err := l.api()
	if err != nil {
		return nil, nil, err
	}
	all, err := l.changedNodes()
	var nodes []*changedNode
	for _, n := range all {
		if strings.HasPrefix(n.name, "aks-many-") {
			nodes = append(nodes, n)
		}
	}
	return a, nodes, err
}

// selectorSet is felix's name for the IP set of pods of the namespace default with a label (libcalico-go/lib/hash).
func selectorSet(label, value string) string {
	selector := fmt.Sprintf(`(projectcalico.org/namespace == "default" && (projectcalico.org/orchestrator == "k8s" && %s == %q))`, label, value)
	sum := sha256.Sum224([]byte("s:" + selector))
	return ("cali40s:" + base64.RawURLEncoding.EncodeToString(sum[:]))[:31]
}

// inSet waits until a set holds an address, or does not.
func (n *changedNode) inSet(ctx context.Context, set string, ip net.IP, want bool) (time.Time, error) {
	for ctx.Err() == nil {
		holds, err := n.sets.IpsetTest(set, &netlink.IPSetEntry{IP: ip.To4(), CIDR: 32})
		if err != nil {
			return time.Time{}, fmt.Errorf("test IP set %s: %w", set, err)
		}
		if holds == want {
			return time.Now(), nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Time{}, ctx.Err()
}

// applied sums up felix's metric of how often, and for how many seconds, it has applied changes to the kernels of nodes.
func (l *lab) applied(nodes []*changedNode) (sum, count float64) {
	for _, n := range nodes {
		text, err := l.metrics(n.name)
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			v, _ := strconv.ParseFloat(value, 64)
			switch name {
			case "felix_int_dataplane_apply_time_seconds_sum":
				sum += v
			case "felix_int_dataplane_apply_time_seconds_count":
				count += v
			}
		}
	}
	return sum, count
}

// felixTime sums up the processor time of the felixes of a lab.
func (l *lab) felixTime() (seconds float64) {
	all, err := l.processes()
	if err != nil {
		return 0
	}
	for _, p := range all {
		if strings.Contains(p.name, "felix") {
			seconds += p.cpu
		}
	}
	return seconds
}

// restFelix waits until the felixes of a lab together use less than half a processor: with many nodes their start takes longer than up.
func (l *lab) restFelix() {
	const look, looks = 5 * time.Second, 24
	for range looks {
		before := l.felixTime()
		if time.Sleep(look); l.felixTime()-before < look.Seconds()/2 {
			return
		}
	}
}

// metrics are felix's, from inside a node.
func (l *lab) metrics(node string) (string, error) {
	ns, err := netns.Open(filepath.Join("/run/packetwalk", l.name, "netns", node))
	if err != nil {
		return "", err
	}
	defer ns.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: ns.Dial, DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Get("http://127.0.0.1:9091/metrics")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// chainMade waits for a namespace, and in it for the transaction that makes a chain.
func chainMade(ctx context.Context, path, chain string, made chan<- time.Time) error {
	for {
		ns, err := vnetns.GetFromPath(path)
		if err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("%s: %w", path, ctx.Err())
			}
			time.Sleep(5 * time.Millisecond)
			continue
		}
		defer ns.Close()
		conn, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, &mdnetlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1), NetNS: int(ns)})
		if errors.Is(err, unix.EINVAL) { // the file is there before the namespace is mounted on it
			time.Sleep(5 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
		for {
			messages, err := conn.Receive()
			if err != nil {
				return fmt.Errorf("%s: chain %s: %w", path, chain, err)
			}
			for _, m := range messages {
				if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWCHAIN && bytes.Contains(m.Data, []byte(chain+"\x00")) {
					made <- time.Now()
					return nil
				}
			}
		}
	}
}

// chains counts the chains of the node's kernel whose names begin so.
func (n *changedNode) chains(prefix string) (count int, err error) {
	ns, err := vnetns.GetFromPath(n.path)
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	conn, err := mdnetlink.Dial(unix.NETLINK_NETFILTER, &mdnetlink.Config{NetNS: int(ns)})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	all, err := conn.Execute(mdnetlink.Message{
		Header: mdnetlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN, Flags: mdnetlink.Request | mdnetlink.Dump},
		Data:   []byte{unix.AF_INET, 0, 0, 0},
	})
	for _, m := range all {
		if bytes.Contains(m.Data, []byte(prefix)) {
			count++
		}
	}
	return count, err
}

// felix is the node's.
func (n *changedNode) felix() (process, error) {
	space := inode(n.path)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		exe, _ := os.Readlink(dir + "/exe")
		if inode(dir+"/ns/net") == space && strings.Contains(filepath.Base(exe), "felix") {
			if p, ok := memoryOf(dir); ok {
				return p, nil
			}
		}
	}
	return process{}, errors.Join(err, fmt.Errorf("node %s has no felix", n.name))
}
