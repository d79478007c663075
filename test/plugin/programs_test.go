package plugin

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/testing/bpflock"
	"packetwalk.dev/internal/testing/bpftest"
)

// programs: where a program in a pod's control group, or in its node's, may take connections elsewhere, as Cilium's do, the walk is
// undecided and names it. What the program does not get is as sure as before, and so is what other pods send.
func programs(t *testing.T, p *plugin) {
	uid := p.Kubectl(t, "get", "pod", "one", "-o", "jsonpath={.metadata.uid}")
	service := netip.MustParseAddr(p.Kubectl(t, "get", "service", "two", "-o", "jsonpath={.spec.clusterIP}"))
	elsewhere := bpftest.Redirect(service, netip.MustParseAddrPort(outside))
	const lookAt = "walk --to svc/two:80 --from pod/"
	sure := func(args string) {
		t.Helper()
		if s := p.run(t, 0, strings.Fields(args)...); strings.Contains(s.out, "BPF") {
			t.Errorf("%s:\n%s", args, s.out)
		}
	}
	unsure := func(args string, words ...string) {
		t.Helper()
		s := p.run(t, 3, strings.Fields(args)...)
		for _, w := range words {
			if !strings.Contains(s.out, w) {
				t.Errorf("%s: want %q:\n%s", args, w, s.out)
			}
		}
	}
	sure(lookAt + "one")
	for group, name := range map[string]string{bpftest.LabGroup(t, p.Name, "pod"+uid): "/pod" + uid + ")", bpftest.LabGroup(t, p.Name, p.nodes[0]): ""} {
		t.Run(filepath.Base(group), func(t *testing.T) {
			id := bpftest.AttachToGroup(t, group, "pw_sock4", ebpf.AttachCGroupInet4Connect, elsewhere)
			program := fmt.Sprintf("BPF program pw_sock4 (id %d, connect4", id)
			unsure(lookAt+"one", program, name)
			unsure(lookAt+"one --live", program, name)
			sure(lookAt + "two")
			sure("walk --from pod/one --to pod/two --proto icmp")
		})
	}
	t.Run("of the receiver", func(t *testing.T) {
		uid := p.Kubectl(t, "get", "pod", "two", "-o", "jsonpath={.metadata.uid}")
		id := bpftest.AttachToGroup(t, bpftest.LabGroup(t, p.Name, "pod"+uid), "pw_peer", ebpf.AttachCgroupInet4GetPeername, bpftest.Pass())
		words := fmt.Sprintf("BPF program pw_peer (id %d, getpeername4", id)
		unsure(lookAt+"one", words, "the kernel of pod default/two sees", "what its program sees is unknown: ")
		unsure(lookAt+"one --live", words, "the kernel of pod default/two sees")
	})
	t.Run("any namespace", func(t *testing.T) {
		node, err := netns.Open("/run/packetwalk/" + p.Name + "/netns/" + p.nodes[0])
		if err != nil {
			t.Fatal(err)
		}
		defer node.Close()
		bpflock.Load(t)
		id := bpftest.AttachToHook(t, node, "pw_hook", link.NetfilterInetForward, bpftest.Pass())
		bpftest.Load(t, "pw_map", ebpf.AttachSkSKBStreamVerdict, bpftest.Pass())
		unsure(lookAt+"one", fmt.Sprintf("BPF program pw_hook (id %d, netfilter forward) may drop the packet", id))
		unsure("walk --from pod/one --to pod/two:53 --proto udp", "BPF program pw_map (id", "sk_skb) may choose another socket, or none")
	})
	sure(lookAt + "one")
}
