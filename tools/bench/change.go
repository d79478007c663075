package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const changeNodes = 20

// A change is one of the cluster's configuration that every node has to follow, and back.
type change struct {
	name string
	do   [2]request // there and back, by turns
	// follow waits until the node has followed; the second argument tells which of the two requests was made.
	follow func(ctx context.Context, n *changedNode, turn int) (time.Time, error)
}

// request is one to the API.
type request struct{ method, path, kind, body string }

const (
	masqConfigMap = "/api/v1/namespaces/kube-system/configmaps/azure-ip-masq-agent-config?fieldManager=bench"
	ippools       = "/apis/crd.projectcalico.org/v1/ippools"
	serverApply   = "application/apply-patch+yaml" // makes the ConfigMap where there is none
)

var changes = []change{
	{
		name: "a Calico IPPool in both IP sets",
		do: [2]request{
			{http.MethodPost, ippools, "application/json",
				`{"apiVersion":"crd.projectcalico.org/v1","kind":"IPPool","metadata":{"name":"bench"},"spec":{"cidr":"172.18.0.0/16","natOutgoing":true,"disabled":true}}`},
			{http.MethodDelete, ippools + "/bench", "", ""},
		},
		follow: func(ctx context.Context, n *changedNode, turn int) (time.Time, error) {
			return n.inPools(ctx, turn == 0)
		},
	},
	{
		name: "a range of the ip-masq-agent's ConfigMap in its rules",
		do: [2]request{
			{http.MethodPatch, masqConfigMap, serverApply,
				`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"azure-ip-masq-agent-config"},"data":{"ip-masq-agent":"nonMasqueradeCIDRs:\n- 10.13.0.0/16\n- 10.1.0.0/16\n"}}`},
			{http.MethodPatch, masqConfigMap, serverApply,
				`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"azure-ip-masq-agent-config"},"data":{"ip-masq-agent":"nonMasqueradeCIDRs:\n- 10.13.0.0/16\n"}}`},
		},
		follow: func(ctx context.Context, n *changedNode, _ int) (time.Time, error) { return n.rulesWritten(ctx) },
	},
}

// benchChange measures on a lab of 20 nodes how long after the API server's answer a change is in force on each node.
func benchChange(n int) (err error) {
	l, err := makeLab("change", fmt.Sprintf(`apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  network: {policy: calico, ipMasqAgent: v2}
  nodePools: [{name: nodepool1, count: %d, maxPods: 10}]
  azure:
    vnets:
    - name: aksVnet
      addressPrefixes: [10.13.0.0/16]
      subnets: [{name: aks, prefix: 10.13.64.0/20}]
`, changeNodes))
	defer l.end(&err)
	if err != nil {
		return err
	}
	nodes, err := l.changedNodes()
	if err != nil {
		return err
	}
	defer func() {
		for _, node := range nodes {
			node.close()
		}
	}()
	a, err := l.api()
	if err != nil {
		return err
	}
	time.Sleep(5 * time.Second) // the nodes' agents come to rest
	for _, c := range changes {
		fmt.Printf("  %s, in the kernels of %d nodes:\n", c.name, changeNodes)
		each, last := series{name: "a node, after the API server's answer", unit: "ms"},
			series{name: "the last node, after the API server's answer", unit: "ms"}
		whole := series{name: "the last node, after the request", unit: "ms"}
		for i := range 2 * n {
			took, answer, err := c.once(a, nodes, i%2)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			for _, t := range took {
				each.add(ms(max(0, t-answer))) // one may be faster than the answer
			}
			last.add(ms(max(0, slices.Max(took)-answer)))
			whole.add(ms(slices.Max(took)))
			time.Sleep(time.Second)
		}
		each.print()
		last.print()
		whole.print()
	}
	fmt.Println("  (target: the last node 1000 ms after the answer, in the worst run)")
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// once makes one change and gives how long after the request each node had it, and how long the API server's answer took.
func (c *change) once(a *api, nodes []*changedNode, turn int) (took []time.Duration, answer time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, n := range nodes {
		n.forget()
	}
	at := make([]time.Time, len(nodes))
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	begin := time.Now()
	for i, n := range nodes {
		all.Go(func() { at[i], errs[i] = c.follow(ctx, n, turn) })
	}
	if err := a.do(ctx, c.do[turn]); err != nil {
		cancel()
		all.Wait()
		return nil, 0, err
	}
	answer = time.Since(begin)
	all.Wait()
	for i, n := range nodes {
		if errs[i] != nil {
			return nil, 0, fmt.Errorf("node %s has not followed: %w", n.name, errs[i])
		}
		took = append(took, at[i].Sub(begin))
	}
	return took, answer, nil
}

func (a *api) do(ctx context.Context, r request) error {
	req, err := http.NewRequestWithContext(ctx, r.method, a.server+r.path, strings.NewReader(r.body))
	if err != nil {
		return err
	}
	if r.kind != "" {
		req.Header.Set("Content-Type", r.kind)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s %s: %s: %s", r.method, r.path, resp.Status, bytes.TrimSpace(body))
	}
	return err
}

// A changedNode is a node whose kernel is looked at from here, without a program running on it.
type changedNode struct {
	name  string
	path  string // of its namespace
	sets  *netlink.Handle
	rules *mdnetlink.Conn
	wrote chan time.Time // transactions of its packet filter
}

func (l *lab) changedNodes() ([]*changedNode, error) {
	list, err := l.list("nodes")
	if err != nil {
		return nil, err
	}
	var nodes []*changedNode
	for _, o := range list {
		n, err := openNode(o.Metadata.Name, filepath.Join("/run/packetwalk", l.name, "netns", o.Metadata.Name))
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", o.Metadata.Name, err)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func openNode(name, path string) (*changedNode, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	n := &changedNode{name: name, path: path, wrote: make(chan time.Time, 1000)}
	if n.sets, err = netlink.NewHandleAt(ns, unix.NETLINK_NETFILTER); err != nil {
		return nil, err
	}
	n.rules, err = mdnetlink.Dial(unix.NETLINK_NETFILTER, &mdnetlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1), NetNS: int(ns)})
	if err != nil {
		n.sets.Close()
		return nil, err
	}
	go n.listen()
	return n, nil
}

func (n *changedNode) close() {
	n.sets.Close()
	_ = n.rules.Close()
}

// listen notes the end of each transaction until the socket is closed.
func (n *changedNode) listen() {
	for {
		messages, err := n.rules.Receive()
		if err != nil {
			return
		}
		now := time.Now()
		for _, m := range messages {
			if m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
				n.wrote <- now
			}
		}
	}
}

func (n *changedNode) forget() {
	for {
		select {
		case <-n.wrote:
		default:
			return
		}
	}
}

// rulesWritten waits for the next transaction.
func (n *changedNode) rulesWritten(ctx context.Context) (time.Time, error) {
	select {
	case at := <-n.wrote:
		return at, nil
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}

// inPools waits until both of Calico's sets hold the benchmark's range, or both do not.
func (n *changedNode) inPools(ctx context.Context, want bool) (time.Time, error) {
	inSet := &netlink.IPSetEntry{IP: net.IPv4(172, 18, 0, 0), CIDR: 16}
	for ctx.Err() == nil {
		right := true
		for _, set := range []string{"cali40masq-ipam-pools", "cali40all-ipam-pools"} {
			holds, err := n.sets.IpsetTest(set, inSet)
			if err != nil {
				return time.Time{}, fmt.Errorf("test IP set %s: %w", set, err)
			}
			right = right && holds == want
		}
		if right {
			return time.Now(), nil
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Time{}, ctx.Err()
}
