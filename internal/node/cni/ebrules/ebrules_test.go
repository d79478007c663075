package ebrules

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/testing/goldentest"
)

// TestRules: the addresses of a node, a pod and a bridge in, the rules to the letter out.
func TestRules(t *testing.T) {
	goldentest.Run(t, "testdata/*.txtar", 1, func(t *testing.T, in []txtar.File) []txtar.File {
		words := strings.Fields(string(in[0].Data))
		mac := func(s string) net.HardwareAddr {
			m, err := net.ParseMAC(s)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		node, pod, bridge := words[:2], words[2:4], words[4:7]
		var out strings.Builder
		for _, r := range slices.Concat(
			Node("eth0", mac(node[1]), []netip.Addr{netip.MustParseAddr(node[0])}),
			Pod("eth0", netip.MustParseAddr(pod[0]), mac(pod[1])),
			Deduplicate(Dedup, mac(bridge[1]), "veth", netip.MustParseAddr(bridge[0]), netip.MustParsePrefix(bridge[2])),
			Deduplicate(DedupAKS, mac(bridge[1]), "veth", netip.MustParseAddr(bridge[0]), netip.MustParsePrefix(bridge[2])),
		) {
			fmt.Fprintf(&out, "*%s\n-A %s\n", r.Table, r.Text)
		}
		return []txtar.File{{Name: "rules", Data: []byte(out.String())}}
	})
}
