package oracle

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	"packetwalk.dev/internal/kernel"
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

// nftDump is what nft lists of the proxier's table in a namespace of its own.
func nftDump(t *testing.T, c Case) []byte {
	t.Helper()
	v := c.Settings
	ns, err := kernel.CreateNamespace(filepath.Join(t.TempDir(), "nft"))
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{ns: ns, tables: &tables{}}
	t.Cleanup(func() {
		if err := u.stop(); err != nil {
			t.Error(err)
		}
		if err := ns.Remove(); err != nil {
			t.Error(err)
		}
	})
	family, ip, node, pods, services := corev1.IPv4Protocol, "ip", "10.240.0.4", "10.240.0.0/16", "10.0.0.0/16"
	if v.IPv6 {
		family, ip, node, pods, services = corev1.IPv6Protocol, "ip6", "fd00::4", "fd00::/64", "fd01::/112"
	}
	err = ns.Do(func() (err error) {
		detector := proxyutil.NewDetectLocalByCIDR(pods)
		health := healthcheck.NewProxyHealthServer("", time.Minute, nil)
		u.proxier, err = nftables.NewProxier(t.Context(), family, time.Nanosecond, time.Nanosecond, v.MasqueradeAll, 14, detector,
			NodeName, net.ParseIP(node), nil, health, nil, false)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	u.proxier.OnServiceCIDRsChanged([]string{services})
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
