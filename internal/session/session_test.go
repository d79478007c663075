package session

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/syntax/iptables"
)

var _ proof.Subject = (*Session)(nil)

// pieces is a backend, and its source, whose hosts are read on demand: a service has an endpoint on each of three nodes.
type pieces struct{ hosts map[string]bool }

func newPieces() (*pieces, *Session) {
	p := &pieces{hosts: map[string]bool{}}
	return p, &Session{backend: p, source: p}
}

func (p *pieces) read(context.Context) (snapshot.Source, error) { return p, nil }
func (p *pieces) place(string) (proof.Place, error)             { return nil, fs.ErrNotExist }
func (p *pieces) close(context.Context) error                   { return nil }

func (p *pieces) readHosts(_ context.Context, hosts []string) (read bool) {
	for _, h := range hosts {
		read = read || !p.hosts[h]
		p.hosts[h] = true
	}
	return read
}

func (p *pieces) Names() []string { return []string{"node/a", "node/b", "node/c", "node/d"} }

func (p *pieces) Objects() (o snapshot.Objects) {
	for i, name := range []string{"a", "b", "c", "d"} {
		o.Nodes = append(o.Nodes, snapshot.Node{Name: name, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}})
		o.Pods = append(o.Pods, snapshot.Pod{Namespace: "shop", Name: "web-" + name, Node: name,
			IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i + 1), 9})}})
	}
	return o
}

// Host returns a node with a card; a has rules that send what is for 10.96.0.1 to a pod on one of the others. d never becomes readable.
func (p *pieces) Host(name string) (*snapshot.Host, error) {
	at := slices.Index(p.Names(), name)
	if at < 0 {
		return nil, snapshot.NotFound(name, nil)
	}
	if !p.hosts[name] || name == "node/d" {
		return nil, &snapshot.UnreadError{Host: name, Err: errors.New("hung")}
	}
	address := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(at + 1)}), 24)
	f := &fib.State{
		Links: []fib.Link{{Name: "lo", Index: 1, Up: true, LowerUp: true, Type: "loopback"},
			{Name: "eth0", Index: 2, Up: true, LowerUp: true, Type: "ether"}},
		Addresses: []fib.Address{{Link: "eth0", Prefix: address, Scope: "global"}},
		Routes: []fib.Route{
			{Table: fib.TableLocal, Type: "local", Destination: netip.PrefixFrom(address.Addr(), 32), Link: "eth0", Scope: "host"},
			{Table: fib.TableMain, Type: "unicast", Destination: netip.MustParsePrefix("0.0.0.0/0"), Link: "eth0",
				Gateway: netip.MustParseAddr("10.0.0.254")},
		},
	}
	f.Index()
	h := &snapshot.Host{Name: name, FIB: f, Rules: &netfilter.Ruleset{}, Flows: conntrack.NewTable(nil),
		Sysctls: map[string]string{"net.ipv4.ip_forward": "1"}}
	if name == "node/a" {
		tables, err := iptables.Parse([]byte(`*nat
:OUTPUT ACCEPT [0:0]
-A OUTPUT -d 10.96.0.1/32 -m statistic --mode random --probability 0.33333 -j DNAT --to-destination 10.0.2.9
-A OUTPUT -d 10.96.0.1/32 -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.0.3.9
-A OUTPUT -d 10.96.0.1/32 -j DNAT --to-destination 10.0.4.9
COMMIT
`))
		if err != nil {
			return nil, err
		}
		if h.Rules.Tables, err = iptables.Lower(tables, netfilter.IPv4, netfilter.IPTablesNFT); err != nil {
			return nil, err
		}
	}
	h.Rules.Index()
	return h, nil
}

func toService(from string) walk.Request {
	return walk.Request{Host: from, Packet: packet.Packet{TCPFlags: packet.SYN, Tuple: packet.Tuple{Protocol: packet.TCP,
		Destination: netip.MustParseAddr("10.96.0.1"), DestinationPort: packet.Exactly(80)}}}
}

// TestWalkSome: only the hosts of the chosen outcomes are read, and one that cannot be read is an outcome of its own.
func TestWalkSome(t *testing.T) {
	for name, c := range map[string]struct {
		choose func([]walk.Outcome) []walk.Outcome
		read   string
	}{
		"all":    {func(o []walk.Outcome) []walk.Outcome { return o }, "node/a node/b node/c node/d"},
		"first":  {func(o []walk.Outcome) []walk.Outcome { return o[:1] }, "node/a node/b"},
		"second": {func(o []walk.Outcome) []walk.Outcome { return o[min(1, len(o)):min(2, len(o))] }, "node/a node/c"},
	} {
		t.Run(name, func(t *testing.T) {
			p, s := newPieces()
			r, err := s.WalkSome(t.Context(), toService("node/a"), c.choose)
			if err != nil || len(r.Outcomes) != 3 {
				t.Fatalf("%+v, %v", r, err)
			}
			if got := strings.Join(slices.Sorted(maps.Keys(p.hosts)), " "); got != c.read {
				t.Errorf("%s were read, want %s", got, c.read)
			}
			if r.Outcomes[2].End.Why != "node/d is not read: hung" {
				t.Errorf("%+v", r.Outcomes[2].End)
			}
		})
	}
	t.Run("unread sender", func(t *testing.T) {
		_, s := newPieces()
		if _, err := s.Walk(t.Context(), toService("node/d")); err == nil || err.Error() != "node/d is not read: hung" {
			t.Errorf("error %v", err)
		}
	})
}

// cancelSource is a source whose hosts cancel the context of the walk that reads them.
type cancelSource struct {
	*pieces
	cancel func()
}

func (c cancelSource) Host(name string) (*snapshot.Host, error) {
	c.cancel()
	return c.pieces.Host(name)
}

// TestWalkCanceled: a walk ends with its context, before all of its outcomes were walked.
func TestWalkCanceled(t *testing.T) {
	p, s := newPieces()
	for _, host := range p.Names() {
		p.hosts[host] = true
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.source = cancelSource{p, cancel}
	if r, err := s.Walk(ctx, toService("node/a")); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, error %v", r, err)
	}
}

// TestOpenFile: a pasted text needs no file, and below a root only its own plain files are opened.
func TestOpenFile(t *testing.T) {
	const rules = "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"
	dir, outside := t.TempDir(), t.TempDir()
	for _, file := range []string{filepath.Join(dir, "rules.txt"), filepath.Join(outside, "rules.txt")} {
		if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "folder"), 0o700), os.Symlink(filepath.Join(outside, "rules.txt"), filepath.Join(dir, "link")),
		os.Symlink("/dev/zero", filepath.Join(dir, "zero"))); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, tt := range []struct {
		name string
		file File
		want string // in the notes, or in the error
	}{
		{"pasted", File{Path: "the text", Pasted: []byte(rules)}, "from what the text shows"},
		{"below the root", File{Path: "rules.txt", Root: root}, "from what rules.txt shows"},
		{"anywhere", File{Path: filepath.Join(outside, "rules.txt")}, "prediction only"},
		{"above", File{Path: "../" + filepath.Base(outside) + "/rules.txt", Root: root}, "escapes"},
		{"link", File{Path: "link", Root: root}, "escapes"},
		{"link to a device", File{Path: "zero", Root: root}, "escapes"},
		{"folder", File{Path: "folder", Root: root}, "not a regular file"},
		{"absent", File{Path: "absent", Root: root}, "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := OpenFile(t.Context(), tt.file)
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = strings.Join(s.Notes, "; ")
				defer s.Close(t.Context())
			}
			if !strings.Contains(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// versions is a backend whose hosts are others each time that they are read.
type versions struct {
	pieces
	sources []snapshot.Source
}

func (v *versions) read(context.Context) (snapshot.Source, error) {
	fresh := v.sources[0]
	v.sources = v.sources[1:]
	return fresh, nil
}

// hostMap is a source of some hosts.
type hostMap map[string]*snapshot.Host

func (h hostMap) Names() []string           { return slices.Sorted(maps.Keys(h)) }
func (h hostMap) Objects() snapshot.Objects { return snapshot.Objects{} }

func (h hostMap) Host(name string) (*snapshot.Host, error) {
	if h[name] == nil {
		return nil, snapshot.NotFound(name, nil)
	}
	return h[name], nil
}

// TestRefresh: the new states count where something that matters for packets differs at one of the hosts that are named.
func TestRefresh(t *testing.T) {
	state := func(addresses ...string) *snapshot.Host {
		h := &snapshot.Host{FIB: &fib.State{}, Rules: &netfilter.Ruleset{}}
		for _, a := range addresses {
			h.FIB.Addresses = append(h.FIB.Addresses, fib.Address{Link: "eth0", Prefix: netip.MustParsePrefix(a)})
		}
		return h
	}
	old := hostMap{"node/a": state("10.0.0.1/24"), "node/b": state("10.0.0.2/24")}
	for name, c := range map[string]struct {
		fresh hostMap
		want  string
	}{
		"the same":   {hostMap{"node/a": state("10.0.0.1/24"), "node/b": state("10.0.0.9/24")}, ""},
		"an address": {hostMap{"node/a": state("10.0.0.3/24"), "node/b": state("10.0.0.2/24")}, "node/a: addresses"},
		"gone":       {hostMap{"node/b": state("10.0.0.2/24")}, "node/a, which is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Session{backend: &versions{sources: []snapshot.Source{c.fresh}}, source: old}
			changes, err := s.Refresh(t.Context(), []string{"node/a", "node/new"})
			if got := strings.Join(changes, "; "); err != nil || got != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
			if isNew := s.Source().(hostMap)["node/a"] == c.fresh["node/a"]; isNew != (c.want != "") {
				t.Error("the wrong states count")
			}
		})
	}
}
