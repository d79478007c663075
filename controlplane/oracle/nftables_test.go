package oracle

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/kernel/netns"
)

// TestNFTablesMode: the rules of kube-proxy's nftables mode that walks are tested to explain are those that it writes. UPDATE=1 writes them
// anew.
func TestNFTablesMode(t *testing.T) {
	needRoot(t)
	for _, seed := range []uint64{12, 21, 27} { // with every kind of chain among them, and of both families
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			got := nftDump(t, Random(seed, 0))
			file := fmt.Sprintf("../../internal/answer/explain/foreign/testdata/kube-proxy-nftables-%d.txt", seed)
			if os.Getenv("UPDATE") != "" {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			words := func(b []byte) []string { // nft lists elements of sets in any order
				return slices.Sorted(slices.Values(strings.FieldsFunc(string(b), func(r rune) bool { return strings.ContainsRune(" ,\n\t", r) })))
			}
			if diff := cmp.Diff(words(want), words(got)); diff != "" {
				t.Errorf("%s (-want +got); UPDATE=1 writes it anew:\n%s", file, diff)
			}
		})
	}
}

// nftDump returns nft's listing of the proxier's table in a namespace made for it.
func nftDump(t *testing.T, c Case) []byte {
	t.Helper()
	v := c.Settings
	ns, err := netns.Create(filepath.Join(t.TempDir(), "nft"))
	if err != nil {
		t.Fatal(err)
	}
	ip := "ip"
	v.ClusterCIDR, v.NodeIP, v.ServiceCIDRs = "10.240.0.0/16", "10.240.0.4", []string{"10.0.0.0/16"}
	if v.IPv6 {
		ip, v.ClusterCIDR, v.NodeIP, v.ServiceCIDRs = "ip6", "fd00::/64", "fd00::4", []string{"fd01::/112"}
	}
	v.MasqueradeBit, v.NodePortAddresses = 14, nil
	u, err := newUpstreamMaps(ns, v)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(u.stop(), ns.Remove()); err != nil {
			t.Error(err)
		}
	})
	if err := u.sync(c.Steps[0]); err != nil {
		t.Fatal(err)
	}
	var out, words bytes.Buffer
	command := exec.Command("nft", "list", "table", ip, "kube-proxy")
	command.Stdout, command.Stderr = &out, &words
	if err := ns.Do(command.Run); err != nil {
		t.Fatalf("%v: %s", err, words.String())
	}
	return out.Bytes()
}
