package pull

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
)

// TestAllowed: a registry at an address that is not the internet's is asked only where the user allows it, without TLS only where they say.
func TestAllowed(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	h, s := newHub(t), newStore(t)
	ref, _ := h.push(t, "shop:v1", runtime.GOARCH)
	asked := h.asked.Load()
	for _, allowed := range [][]Registry{nil, {{h.host, false}}, {{"localhost:" + port(h.host), true}}, {{"127.0.0.1:443", true}}} {
		if _, err := NewClient(allowed).Load(t.Context(), s, ref); err == nil || h.asked.Load() != asked {
			t.Errorf("with %v: %v", allowed, err)
		}
	}
	if _, err := NewClient(nil).Load(t.Context(), s, ref); !strings.Contains(fmt.Sprint(err), "--private-registry") {
		t.Errorf("the error does not say what to do: %v", err)
	}
}

func TestPublic(t *testing.T) {
	for address, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true, "10.1.2.3": false, "127.0.0.1": false, "169.254.169.254": false, "192.168.1.1": false,
		"172.31.0.1": false, "100.64.0.1": false, "0.0.0.0": false, "::": false, "::1": false, "::ffff:10.0.0.1": false, "fd00::1": false,
		"fe80::1%eth0": false, "64:ff9b::a00:1": false, "2002:a00:1::": false, "198.51.100.10": false, "203.0.113.1": false,
		"168.63.129.16": false, "255.255.255.255": false, "224.0.0.1": false, "ff02::1": false, "::ffff:8.8.8.8": true, "::7f00:1": false,
	} {
		if got := public(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s is public: %v", address, got)
		}
	}
}

func TestParseRegistry(t *testing.T) {
	for text, want := range map[string]Registry{
		"registry.example": {"registry.example:443", false}, "registry.example:5000": {"registry.example:5000", false},
		"http://localhost": {"localhost:80", true}, "http://10.0.0.1:5000": {"10.0.0.1:5000", true}, "[::1]:5000": {"[::1]:5000", false},
		"https://Registry.Example": {"registry.example:443", false},
	} {
		if got, err := ParseRegistry(text); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "a/b", "user@host", "http://", "a:b:c", "host:0", "host:99999", "ftp://x", "a b"} {
		if got, err := ParseRegistry(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
