package main

import (
	"context"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
)

// runs are commands of the image, and what each prints: all programs, both variants of iptables, and modules that they load by name.
var runs = []struct{ command, prints string }{
	{"/usr/sbin/nft --version", "nftables v"},
	{"/usr/sbin/nft -j list ruleset", `"nftables"`},
	{"/usr/sbin/iptables --version", "(nf_tables)"},
	{"/usr/sbin/ip6tables-save --version", "(nf_tables)"},
	{"/usr/sbin/iptables-nft-save", ""},
	{"/usr/sbin/iptables-nft -m conntrack -m comment -m statistic -j MARK --help", "MARK target options"},
	{"/usr/sbin/iptables-legacy-save --version", "(legacy)"},
	{"/usr/sbin/ip6tables-legacy-save --version", "(legacy)"},
	{"/usr/sbin/iptables-legacy -m set -m addrtype -j DNAT --help", "DNAT target options"},
	{"/usr/sbin/ebtables --version", "(nf_tables)"},
	{"/usr/sbin/ebtables-nft-save", ""},
	{"/usr/sbin/ebtables-legacy --version", "legacy"},
	{"/usr/sbin/ipset --version", "ipset v"},
	{"/usr/sbin/conntrack --version", "conntrack v"},
	{"/bin/ip -V", "iproute2"},
	{"/sbin/ip -j -d addr show", `"lo"`},
	{"/sbin/bridge -V", "bridge utility"},
	{"/sbin/bridge -j fdb show", "["},
}

// runAll runs them with a directory as their root, in a network namespace of their own.
func runAll(t *testing.T, root string) {
	t.Helper()
	for _, r := range runs {
		words := strings.Fields(r.command)
		out, err := program.Command{Path: words[0], Args: words[1:], Root: root, In: apart}.Output(context.WithoutCancel(t.Context()))
		if err != nil || !strings.Contains(string(out), r.prints) {
			t.Errorf("%s: %v; printed %.300q, want %q", r.command, err, out, r.prints)
		}
	}
	for _, shell := range []string{"/bin/sh", "/bin/bash", "/usr/bin/perl"} {
		if path, err := exec.LookPath(root + shell); err == nil {
			t.Errorf("%s is in the image", path)
		}
	}
}

// apart runs a function on a thread in a network namespace of its own; the thread ends with it.
func apart(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
