package foreign

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/snapshot"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
	"packetwalk.dev/internal/testing/bpftest"
	"packetwalk.dev/test/agree"
	"packetwalk.dev/test/world"
)

// unusual tests walks through nodes that lack the tools, have rules that no nft here can read, or have a BPF program at a pod's sockets. A
// walk agrees with the kernel or is undecided.
func unusual(t *testing.T, w *world.World, objects *snapshot.Objects, mode string) {
	pods := podsOf(objects, "echo-")
	node := nodeOf(objects, pods[0])
	u := newUser(t, w)
	toService := agree.Pair{From: "pod/" + pods[0], To: "svc/cluster:80", Proto: "tcp"}
	toNode := agree.Pair{From: "pod/" + pods[1], To: "node/" + node + ":30080", Proto: "tcp"}
	all := []agree.Pair{toService, toNode, {From: "node/" + node, To: "svc/cluster:7", Proto: "udp"}, {From: "pod/" + pods[0], To: outside, Proto: "icmp"}}
	check := func(t *testing.T, f func(context.Context, agree.Pair) error, pairs ...agree.Pair) {
		t.Helper()
		for _, p := range pairs {
			if err := f(t.Context(), p); err != nil {
				t.Errorf("%s: %v", p, err)
			}
		}
	}
	t.Run("node without tools", func(t *testing.T) {
		move := func(from, to string) {
			w.SSH(t, node, "sh", "-ec", fmt.Sprintf("for p in %s; do for dir in /usr/sbin /usr/bin; do "+
				"[ ! -f $dir/$p%[2]s ] || mv $dir/$p%[2]s $dir/$p%[3]s; done; done", tools, from, to))
		}
		move("", ".away")
		defer move(".away", "")
		if out := w.SSH(t, node, "sh", "-c", "command -v nft iptables-save ip || echo none"); out != "none\n" && out != "none" {
			t.Fatalf("the node has %s", out)
		}
		check(t, u.agrees, all...)
	})
	t.Run("rules of a newer nft", func(t *testing.T) {
		addTunnel(t, w.Name, node)
		if out := w.SSH(t, node, "sh", "-c", "nft list ruleset >/dev/null 2>&1 || echo fails"); !strings.Contains(out, "fails") {
			t.Fatal("the node's nft reads the rules")
		}
		if mode == "iptables" { // iptables-save reads them
			check(t, u.agrees, all...)
			return
		}
		unread := func(ctx context.Context, p agree.Pair) error {
			return u.undecided(ctx, p, "kube-proxy", "the rule could not be read: nft was killed by SIGABRT; install a newer version")
		}
		check(t, unread, all...)
	})
	t.Run("program at a pod's sockets", func(t *testing.T) {
		uid := w.Kubectl(t, "get", "pod", pods[0], "-o", "jsonpath={.metadata.uid}")
		service := netip.MustParseAddr(w.Kubectl(t, "get", "service", "cluster", "-o", "jsonpath={.spec.clusterIP}"))
		id := bpftest.AttachToGroup(t, bpftest.LabGroup(t, w.Name, "pod"+uid), "fw_sock4", ebpf.AttachCGroupInet4Connect,
			bpftest.Redirect(service, netip.MustParseAddrPort(outside+":80")))
		named := func(ctx context.Context, p agree.Pair) error {
			return u.undecided(ctx, p, fmt.Sprintf("BPF program fw_sock4 (id %d, connect4", id))
		}
		check(t, named, toService)
		check(t, u.agrees, toNode, agree.Pair{From: "pod/" + pods[1], To: "svc/cluster:80", Proto: "tcp"})
	})
	check(t, u.agrees, all...)
}

// tools are the programs of a node that show its network.
const tools = "bridge conntrack ebtables-legacy ip ipset nft tc xtables-legacy-multi xtables-nft-multi"

// addTunnel adds a table with an object to a node that nft knows since 1.1.4: older ones abort. The end of the test deletes it.
func addTunnel(t *testing.T, lab, node string) {
	t.Helper()
	ns, err := netns.Open("/run/packetwalk/" + lab + "/netns/" + node)
	if err != nil {
		t.Fatal(err)
	}
	nft := &ruleset.NFTables{NetNS: ns.FD()}
	t.Cleanup(func() { nft.Close(); ns.Close() })
	const ( // enum nft_object_attributes, nft_tunnel_key_attributes, nft_tunnel_key_ip_attributes
		objTable, objName, objType, objData = 1, 2, 3, 4
		objectTunnel                        = 6
		keyID, keyIP                        = 1, 2
		ipSource, ipDestination             = 1, 2
	)
	address := func(a string) []byte { return netip.MustParseAddr(a).AsSlice() }
	newer := nf.Table{Family: unix.NFPROTO_NETDEV, Name: "newer"}
	tunnel := nf.Attrs{{Kind: objTable, Value: newer.Name}, {Kind: objName, Value: "far"}, {Kind: objType, Value: uint32(objectTunnel)},
		{Kind: objData, Value: nf.Attrs{{Kind: keyID, Value: uint32(10)}, {Kind: keyIP, Value: nf.Attrs{
			{Kind: ipSource, Value: address("192.0.2.1")}, {Kind: ipDestination, Value: address("192.0.2.2")}}}}}}
	object := netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWOBJ, Flags: netlink.Request | netlink.Create},
		Data:   tunnel.Append([]byte{newer.Family, unix.NFNETLINK_V0, 0, 0}),
	}
	if err := nft.Commit(t.Context(), []netlink.Message{newer.Make(), object}, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nft.Commit(context.Background(), []netlink.Message{newer.Delete()}, 0); err != nil {
			t.Error(err)
		}
	})
}
