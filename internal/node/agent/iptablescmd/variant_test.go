package iptablescmd

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestMain prints the detected variant when TestDetectVariant runs this program in a namespace.
func TestMain(m *testing.M) {
	if os.Getenv("PACKETWALK_TEST_ROLE") == "variant" {
		fmt.Println(detected())
		return
	}
	os.Exit(m.Run())
}

// TestDetectVariant: the variant is the one in which the kubelet has left its hint, nft without any; and to look makes no table.
func TestDetectVariant(t *testing.T) {
	kerneltest.NeedRoot(t)
	if out, err := exec.Command("unshare", "-n", "iptables-legacy", "-t", "mangle", "-S").CombinedOutput(); err != nil {
		kerneltest.Missing(t, "no legacy variant of iptables here: %v: %s", err, out)
	}
	for name, c := range map[string]struct{ commands, want string }{
		"nothing":                        {"true", VariantNFT},
		"nft":                            {"iptables-nft -t mangle -N KUBE-IPTABLES-HINT", VariantNFT},
		"legacy":                         {"iptables-legacy -t mangle -N KUBE-IPTABLES-HINT", VariantLegacy},
		"legacy, of an old kubelet":      {"iptables-legacy -t mangle -N KUBE-KUBELET-CANARY", VariantLegacy},
		"legacy, of nobody we know":      {"iptables-legacy -t mangle -N DOCKER", VariantNFT},
		"another table of legacy's":      {"iptables-legacy -t nat -N KUBE-KUBELET-CANARY", VariantNFT},
		"both, but nft is the kubelet's": {"iptables-legacy -t mangle -N KUBE-KUBELET-CANARY; iptables-nft -t mangle -N KUBE-IPTABLES-HINT", VariantNFT},
	} {
		t.Run(name, func(t *testing.T) {
			const tables = "{ cat /proc/self/net/ip_tables_names; nft list tables; }"
			script := fmt.Sprintf("set -e; %s; %s >$2; $1; %s | diff - $2", c.commands, tables, tables)
			cmd := exec.Command("unshare", "-n", "sh", "-c", script, "sh", os.Args[0], t.TempDir()+"/tables")
			cmd.Env = append(os.Environ(), "PACKETWALK_TEST_ROLE=variant")
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != c.want+"\n" {
				t.Errorf("%q, %v; want %s", out, err, c.want)
			}
		})
	}
}

func TestNamesOfPrograms(t *testing.T) {
	for variant, want := range map[string]string{
		VariantInstalled: "ip6tables-restore ip6tables-save", VariantNFT: "ip6tables-nft-restore ip6tables-nft-save",
		VariantLegacy: "ip6tables-legacy-restore ip6tables-legacy-save",
	} {
		if p := New(service.IPv6, variant); p.restore+" "+p.save != want {
			t.Errorf("%q: %s %s", variant, p.restore, p.save)
		}
	}
}
