package excerpt

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/capture/pastedtext"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/testing/goldentest"
	"packetwalk.dev/internal/writers"
)

// TestRead reads texts: each file has the text, and what the host then is.
func TestRead(t *testing.T) {
	goldentest.Run(t, "testdata/snapshots/*.txtar", 1, func(t *testing.T, in []txtar.File) []txtar.File {
		s, err := Read(writers.Book(&snapshot.Objects{}), nil, "node", in[0].Data)
		if err != nil {
			t.Fatal(err)
		}
		h, err := s.Host("node/node")
		if err != nil {
			t.Fatal(err)
		}
		return []txtar.File{{Name: "host", Data: []byte(describe(h))}}
	})
}

func describe(h *snapshot.Host) string {
	var b bytes.Buffer
	for _, t := range h.Rules.Tables {
		for _, c := range t.Chains {
			if len(c.Rules) == 0 && c.Partial {
				fmt.Fprintf(&b, "chain %s %s %s: not shown\n", t.Family, t.Name, c.Name)
				continue
			}
			perhaps := ""
			if c.Partial {
				perhaps = ", perhaps others"
			}
			fmt.Fprintf(&b, "chain %s %s %s: %d rules%s\n", t.Family, t.Name, c.Name, len(c.Rules), perhaps)
		}
	}
	for _, l := range h.FIB.Links {
		fmt.Fprintf(&b, "link %d %s %s %s mtu %d up %v master %q\n", l.Index, l.Name, l.Type, l.MAC, l.MTU, l.Up && l.LowerUp, l.Master)
	}
	for _, a := range h.FIB.Addresses {
		fmt.Fprintf(&b, "address %s %s scope %s\n", a.Link, a.Prefix, a.Scope)
	}
	for _, r := range h.FIB.Routes {
		fmt.Fprintf(&b, "route %s %s via %v dev %s src %v metric %d scope %s table %d %v\n", r.Type, r.Destination, r.Gateway, r.Link, r.Source,
			r.Metric,
			r.Scope, r.Table, r.Nexthops)
	}
	for _, name := range slices.Sorted(maps.Keys(h.IPSets)) {
		fmt.Fprintf(&b, "ipset %s: %d elements\n", name, len(h.IPSets[name].Elements))
	}
	for i := range h.Flows.Flows {
		fmt.Fprintf(&b, "flow %s\n", h.Flows.Flows[i].Original)
	}
	for _, name := range slices.Sorted(maps.Keys(h.Sysctls)) {
		fmt.Fprintf(&b, "sysctl %s = %s\n", name, h.Sysctls[name])
	}
	for _, part := range slices.Sorted(maps.Keys(h.Missing)) {
		fmt.Fprintf(&b, "missing %s: %s\n", part, h.Missing[part])
	}
	for _, a := range h.Assumed {
		fmt.Fprintf(&b, "assumed %s\n", a)
	}
	return b.String()
}

func TestOneHost(t *testing.T) {
	s, err := Read(writers.Book(&snapshot.Objects{}), nil, "x", []byte("-A FORWARD -j DROP"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"node/x"}, s.Names()); diff != "" {
		t.Error(diff)
	}
	if _, err := s.Host("node/y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("another host: %v", err)
	}
	if _, err := Read(writers.Book(&snapshot.Objects{}), nil, "x", []byte("no rules here")); !errors.Is(err, pastedtext.ErrNothingFound) {
		t.Errorf("prose: %v", err)
	}
	if _, err := Read(writers.Book(&snapshot.Objects{}), nil, "x", []byte("table ip t {\n}\n")); err == nil || !strings.Contains(err.Error(), "line 1: nft list ruleset: ") {
		t.Errorf("nft's native syntax: %v", err)
	}
}

// TestRoutes looks routes up that were read from text.
func TestRoutes(t *testing.T) {
	s, err := Read(writers.Book(&snapshot.Objects{}), nil, "x", []byte(`$ ip route
default via 10.0.0.1 dev eth0 proto dhcp src 10.0.0.4 metric 100
10.0.0.0/24 dev eth0 proto kernel scope link src 10.0.0.4
10.2.0.0/16
	nexthop via 10.0.0.8 dev eth0 weight 1
	nexthop via 10.0.0.9 dev eth0 weight 2
unreachable 10.9.0.0/16
10.1.0.7 dev azv1 scope link
fd00::/64 via fd01::1 dev eth1
$ ip route show table all | grep 50
default via 10.0.0.50 dev eth0 table 50
$ ip rule
0:	from all lookup local
200:	from 10.5.0.0/16 lookup 50
32766:	from all lookup main
32767:	from all lookup default
`))
	if err != nil {
		t.Fatal(err)
	}
	h, _ := s.Host("node/x")
	if a := h.FIB.Lookup(fib.Query{Source: netip.MustParseAddr("10.5.0.1"), Destination: netip.MustParseAddr("8.8.8.8"),
		In: "azv1"}); a.Gateway != netip.MustParseAddr("10.0.0.50") {
		t.Errorf("by the policy rule: got %+v", a)
	}
	if why := h.Missing[snapshot.Policy]; why != "" {
		t.Errorf("policy rules: %s", why)
	}
	for destination, want := range map[string]string{
		"8.8.8.8": "unicast eth0 10.0.0.1", "10.0.0.9": "unicast eth0 invalid IP", "10.0.0.4": "local lo invalid IP",
		"10.9.1.1": "unreachable  invalid IP",
		"10.1.0.7": "unicast azv1 invalid IP", "127.0.0.1": "local lo invalid IP", "fd00::7": "unicast eth1 fd01::1",
		"10.2.1.1": "unicast eth0 10.0.0.8",
	} {
		a := h.FIB.Lookup(fib.Query{Destination: netip.MustParseAddr(destination)})
		if got := fmt.Sprintf("%s %s %v", a.Type, a.Link, a.Gateway); got != want {
			t.Errorf("%s: got %s, want %s", destination, got, want)
		}
		if destination == "10.2.1.1" && len(a.Ways) != 2 {
			t.Errorf("%s: %d ways", destination, len(a.Ways))
		}
	}
}

func FuzzRead(f *testing.F) {
	files, _ := filepath.Glob("testdata/snapshots/*.txtar")
	for _, file := range files {
		if a, err := txtar.ParseFile(file); err == nil {
			f.Add(a.Files[0].Data)
		}
	}
	f.Add([]byte("-A INPUT -j X\ndefault via 1.1.1.1 dev e\n1: lo: <UP> mtu 1\n inet 1.1.1.1/8 x\nName: a\nType: hash:net\nMembers:\n1.1.1.1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Read(writers.Book(&snapshot.Objects{}), nil, "x", text)
		if err != nil {
			return
		}
		h, err := s.Host("node/x")
		if err != nil {
			t.Fatal(err)
		}
		h.FIB.Lookup(fib.Query{Destination: netip.MustParseAddr("10.0.0.1")})
		if h.Missing[snapshot.Rules] == "" && len(h.Rules.Tables) == 0 {
			t.Fatal("rules are said to be known, and there are none")
		}
	})
}

// TestCutOff: rules that nft printed in part, or not at all, are not read.
func TestCutOff(t *testing.T) {
	const text = "*nat\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\ntable inet filter {\n\tchain forward { type filter hook forward priority filter; policy drop; }\n}\n"
	for _, printed := range []string{"", `{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"table": {"family"`} {
		s, err := Read(writers.Book(&snapshot.Objects{}), func([]byte) ([]byte, error) { return []byte(printed), nil }, "x", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		h, err := s.Host("node/x")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{4, 5, 6}, h.Account.Unread()); diff != "" {
			t.Errorf("%q: %s", printed, diff)
		}
	}
}
