// Package netnstest makes network namespaces for tests, joins them, and runs commands in them.
package netnstest

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/testing/kerneltest"
)

// Create makes a namespace that the end of the test removes.
func Create(t testing.TB, path string) *netns.Namespace {
	t.Helper()
	ns, err := netns.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Remove() })
	return ns
}

// Pair joins two new namespaces: eth0 with 10.9.0.1/24 in a, and peer-of-a with 10.9.0.2/24 in b.
func Pair(t testing.TB) (a, b *netns.Namespace) {
	t.Helper()
	kerneltest.NeedRoot(t)
	dir := t.TempDir()
	a, b = Create(t, dir+"/a"), Create(t, dir+"/b")
	endA := netns.LinkEnd{Namespace: a, Name: "eth0", MAC: "00:0d:3a:00:00:01"}
	endB := netns.LinkEnd{Namespace: b, Name: "peer-of-a", MAC: "12:34:56:78:9a:bc", Alias: "the other end"}
	if err := netns.EnsureVeth(endA, endB, 1400); err != nil {
		t.Fatal(err)
	}
	Apply(t, a, netns.State{Addresses: []netns.Address{{Link: "eth0", Prefix: netip.MustParsePrefix("10.9.0.1/24")}}})
	Apply(t, b, netns.State{Addresses: []netns.Address{{Link: "peer-of-a", Prefix: netip.MustParsePrefix("10.9.0.2/24")}}})
	WaitUp(t, a, "eth0")
	WaitUp(t, b, "peer-of-a")
	return a, b
}

// WaitUp waits until the kernel has noticed that a link carries packets: it looks once a second (net/core/link_watch.c), and IPv6 drops
// what comes in by the link until then.
func WaitUp(t testing.TB, ns *netns.Namespace, name string) {
	t.Helper()
	h, err := ns.Handle()
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		link, err := h.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		switch state := link.Attrs().OperState; {
		case state == netlink.OperUp:
			return
		case time.Now().After(deadline):
			t.Fatalf("%s is %s", name, state)
		}
	}
}

// LinkIndex returns a link's index.
func LinkIndex(t testing.TB, ns *netns.Namespace, name string) int {
	t.Helper()
	var link *net.Interface
	err := ns.Do(func() (err error) {
		link, err = net.InterfaceByName(name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return link.Index
}

// Apply brings a namespace to a state.
func Apply(t testing.TB, ns *netns.Namespace, s netns.State) {
	t.Helper()
	if err := ns.Apply(s); err != nil {
		t.Fatal(err)
	}
}

// Run runs a command in a namespace and returns what it prints.
func Run(t testing.TB, ns *netns.Namespace, args ...string) string {
	t.Helper()
	return run(t, program.Command{Path: args[0], Args: args[1:], In: ns.Do})
}

// Script runs a shell script, which ends at the first command that fails, and returns what it prints.
func Script(t testing.TB, ns *netns.Namespace, text string) string {
	t.Helper()
	return run(t, program.Command{Path: "sh", Args: []string{"-e"}, Stdin: []byte(text), In: ns.Do})
}

func run(t testing.TB, c program.Command) string {
	t.Helper()
	out, err := c.Output(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
