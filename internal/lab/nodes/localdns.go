package nodes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/plan"
)

// localDNSLink is the link that has LocalDNS's addresses. AKS's is of type dummy, which some kernels do not have. A bridge without ports
// receives what is for its addresses as well.
const localDNSLink = "localdns"

// startLocalDNS gives a node LocalDNS's addresses and starts it, or takes over the one that runs, and returns when it answers.
func (a Agents) startLocalDNS(ctx context.Context, n *Node) error {
	c := a.Nodes.Cluster()
	if !plan.HasLocalDNS(c, n.Node) {
		return nil
	}
	if err := a.Nodes.ensureLocalDNSLink(n); err != nil {
		return err
	}
	corefile := filepath.Join(a.Nodes.Dir.Node(n.Name), "localdns.corefile")
	if err := atomicfile.Write(corefile, plan.Corefile(c), 0o600); err != nil {
		return err
	}
	p := supervise.Process{
		Name: n.Name + ".localdns", Path: a.Nodes.Binaries.ControlPlane, Args: []string{"coredns", "-conf", corefile},
		Env:     []string{"GOGC=50", "GOMAXPROCS=1"}, // as the cluster's CoreDNS
		LogFile: a.Nodes.Dir.Log(n.Name + ".localdns"), PidFile: a.Nodes.Dir.LocalDNSPid(n.Name),
	}
	if err := lifecycle.EndOthers(ctx, n.ns, p); err != nil {
		return err
	}
	s, err := a.Nodes.Run(n.ns, p)
	if err != nil {
		return err
	}
	a.Nodes.setProcess(&n.localDNS, s)
	return a.waitForLocalDNS(ctx, n, p.LogFile)
}

// waitForLocalDNS waits until LocalDNS listens: kubelet's pods may ask it at once. Its upstream servers may not run yet, so that it need not
// be ready.
func (a Agents) waitForLocalDNS(ctx context.Context, n *Node, log string) error {
	url := fmt.Sprintf("http://%s", netip.AddrPortFrom(plan.NodeListener, plan.LocalDNSReadyPort)) + "/ready"
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DialContext: n.ns.Dial, DisableKeepAlives: true}}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err == nil {
			return response.Body.Close()
		}
		if !pause.For(ctx, lookPause) {
			return fmt.Errorf("LocalDNS of %s does not listen: %w; the end of its log:%s", n.Name, context.Cause(ctx), supervise.LastLines(log))
		}
	}
}

// ensureLocalDNSLink gives a node with LocalDNS the link with both addresses, as far as it is missing.
func (l *Nodes) ensureLocalDNSLink(n *Node) error {
	if !plan.HasLocalDNS(l.Cluster(), n.Node) {
		return nil
	}
	h, err := n.ns.Handle()
	if err == nil {
		err = addLocalDNSLink(h)
	}
	if err != nil {
		return fmt.Errorf("add link %s to %s: %w", localDNSLink, n.Name, err)
	}
	return nil
}

// localDNSAddresses are those of the link.
var localDNSAddresses = []netip.Addr{plan.NodeListener, plan.ClusterListener}

// missingLocalDNS returns what a node with LocalDNS lacks of its link, in the words of ip(8); "" for nothing.
func (l *Nodes) missingLocalDNS(n *Node) (string, error) {
	if !plan.HasLocalDNS(l.Cluster(), n.Node) {
		return "", nil
	}
	h, err := n.ns.Handle()
	if err != nil {
		return "", err
	}
	link, err := h.LinkByName(localDNSLink)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return "link " + localDNSLink, nil
	}
	if err != nil {
		return "", err
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return "state up of link " + localDNSLink, nil
	}
	has, err := h.AddrList(link, netlink.FAMILY_V4)
	for _, want := range localDNSAddresses {
		if err == nil && !slices.ContainsFunc(has, func(a netlink.Addr) bool { return a.IP.Equal(want.AsSlice()) }) {
			return fmt.Sprintf("address %s dev %s", want, localDNSLink), nil
		}
	}
	return "", err
}

func addLocalDNSLink(h *netlink.Handle) error {
	link, err := h.LinkByName(localDNSLink)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = localDNSLink
		if err = h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err == nil {
			link, err = h.LinkByName(localDNSLink)
		}
	}
	if err != nil {
		return err
	}
	for _, a := range localDNSAddresses {
		own := net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}
		if err := h.AddrReplace(link, &netlink.Addr{IPNet: &own}); err != nil {
			return err
		}
	}
	return h.LinkSetUp(link)
}
