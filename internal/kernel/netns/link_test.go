package netns_test

import (
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestHalfMadePair: ends that whoever made them did not bring up are brought up the next time; what has an address stays down when it is.
func TestHalfMadePair(t *testing.T) {
	a, b := netnstest.Pair(t)
	netnstest.Run(t, b, "ip", "link", "set", "peer-of-a", "down")
	ensure := func() string {
		t.Helper()
		one, other := netns.LinkEnd{Namespace: a, Name: "eth0"}, netns.LinkEnd{Namespace: b, Name: "peer-of-a"}
		if err := netns.EnsureVeth(one, other, 1400); err != nil {
			t.Fatal(err)
		}
		return netnstest.Run(t, b, "ip", "-br", "link", "show", "peer-of-a")
	}
	if out := ensure(); !strings.Contains(out, "DOWN") {
		t.Errorf("a link with an address was brought up: %s", out)
	}
	netnstest.Run(t, b, "ip", "addr", "flush", "dev", "peer-of-a")
	if out := ensure(); !strings.Contains(out, "UP,LOWER_UP") {
		t.Errorf("a bare link was not brought up: %s", out)
	}
}

func TestLinks(t *testing.T) {
	a, b := netnstest.Pair(t)
	if got := netnstest.Run(t, b, "ip", "-d", "link", "show", "peer-of-a"); !strings.Contains(got, "mtu 1400") ||
		!strings.Contains(got, "alias the other end") || !strings.Contains(got, "12:34:56:78:9a:bc") {
		t.Error(got)
	}
	// A link of the name that is not the pair's is replaced.
	netnstest.Run(t, b, "ip", "link", "add", "name", "x", "type", "bridge")
	if err := netns.EnsureVeth(netns.LinkEnd{Namespace: a, Name: "eth1"}, netns.LinkEnd{Namespace: b, Name: "x"}, 1500); err != nil {
		t.Fatal(err)
	}
	if got := netnstest.Run(t, b, "ip", "-d", "link", "show", "x"); !strings.Contains(got, "veth") {
		t.Errorf("the bridge of the end's name is still there: %s", got)
	}
	for range 2 {
		if err := a.DeleteLink("eth1"); err != nil {
			t.Error(err)
		}
	}
	if names, err := b.LinkNames(); err != nil || slices.Contains(names, "x") {
		t.Errorf("links %v, %v", names, err)
	}
}
