package iptablescmd

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"packetwalk.dev/internal/base/program"
)

// The variants of iptables.
const (
	VariantInstalled = ""       // what the programs iptables-save and so on are
	VariantNFT       = "nft"    // iptables-nft-save and so on
	VariantLegacy    = "legacy" // iptables-legacy-save and so on
	VariantDetect    = "detect" // the one of these two whose rules the node has
)

// variantLimit is how long it may take to see which variant a node has.
const variantLimit = 10 * time.Second

// detected is the variant of this process's node: asked for once, because what is written by one variant the other does not see.
var detected = sync.OnceValue(func() string {
	ctx, cancel := context.WithTimeout(context.Background(), variantLimit)
	defer cancel()
	return detectVariant(ctx, "/proc/self/net/ip_tables_names")
})

// detectVariant finds the variant by the chains that kubelets make for this purpose, KUBE-IPTABLES-HINT, and KUBE-KUBELET-CANARY before
// Kubernetes 1.24 (KEP 3178), as kube-proxy's image does (kubernetes-sigs/iptables-wrappers). Without any it is nft. tables is the kernel's
// list of the tables of the legacy variant: to ask for one that is not there would make it.
func detectVariant(ctx context.Context, tables string) string {
	hinted := func(save string) bool {
		out, err := program.Command{Path: save, Args: []string{"-t", "mangle"}}.Output(ctx)
		return err == nil && (bytes.Contains(out, []byte(":KUBE-IPTABLES-HINT ")) || bytes.Contains(out, []byte(":KUBE-KUBELET-CANARY ")))
	}
	list, err := os.ReadFile(tables)
	legacy := err == nil && slices.Contains(strings.Fields(string(list)), "mangle")
	if legacy && !hinted("iptables-nft-save") && hinted("iptables-legacy-save") {
		return VariantLegacy
	}
	return VariantNFT
}
