package capture_test

import (
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

const worldANode = "node/aks-nodepool1-31351229-0"

func openWorldA(t testing.TB) *capture.Lazy {
	t.Helper()
	f, err := capture.Open(worldA)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return capture.NewSource(f.Origin())
}

// TestWorldA reads a capture of a lab with two services, made with "packetwalk capture".
func TestWorldA(t *testing.T) {
	s := openWorldA(t)
	if n := len(s.Names()); n != 11 {
		t.Fatalf("%d hosts: %v", n, s.Names())
	}
	for _, name := range s.Names() {
		h, err := s.Host(name)
		if err != nil {
			t.Fatal(err)
		}
		for part, why := range h.Unread {
			t.Errorf("%s: %s: %s", name, part, why)
		}
		for _, l := range h.FIB.Links {
			if l.Kind != "veth" {
				continue
			}
			p, ok := h.Peer(l.Name)
			if !ok {
				t.Errorf("%s: the other end of %s is not known", name, l.Name)
				continue
			}
			other, err := s.Host(p.Host)
			if err != nil {
				t.Fatal(err)
			}
			if back, ok := other.Peer(p.PeerLink); !ok || back.Host != name || back.PeerLink != l.Name {
				t.Errorf("%s %s leads to %s %s, and that to %s %s", name, l.Name, p.Host, p.PeerLink, back.Host, back.PeerLink)
			}
		}
	}
	node, err := s.Host(worldANode)
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := node.Sysctl("net", "ipv4", "ip_forward"); v != "1" {
		t.Errorf("ip_forward is %q", v)
	}
	nat := node.Rules.Table(netfilter.IPv4, "nat")
	if nat == nil || nat.Dialect != netfilter.IPTablesNFT || nat.Chain("KUBE-SERVICES") == nil || len(nat.Chain("KUBE-SERVICES").Rules) != 6 {
		t.Fatalf("table nat is not as iptables-save has it: %+v", nat)
	}
	for _, r := range nat.Chain("KUBE-SERVICES").Rules {
		if r.Handle == 0 {
			t.Errorf("rule %d has no handle", r.Number)
		}
	}
	listens := false
	for _, l := range node.Listeners {
		listens = listens || l.Protocol == packet.TCP && l.Local == netip.MustParseAddrPort("0.0.0.0:10256") && l.Process == "packetwalk-node"
	}
	if !listens {
		t.Errorf("no health check on port 10256: %+v", node.Listeners)
	}
	if len(node.Flows.Flows) == 0 {
		t.Error("no connections")
	}
}

func TestObjects(t *testing.T) {
	s := openWorldA(t)
	o := s.Objects()
	if err := s.ObjectsError(); err != nil {
		t.Fatal(err)
	}
	if len(o.Pods) != 4 || len(o.Nodes) != 1 || len(o.Services) != 3 {
		t.Fatalf("%d pods, %d nodes, %d services", len(o.Pods), len(o.Nodes), len(o.Services))
	}
	for _, svc := range o.Services {
		switch svc.Name {
		case "nginx":
			if !svc.Local || len(svc.External) != 1 || len(svc.Ports) != 1 || len(svc.Ports[0].Endpoints) != 2 || svc.Ports[0].NodePort == 0 {
				t.Errorf("nginx: %+v", svc)
			}
		case "kubernetes":
			if svc.Ports[0].Endpoints[0] != netip.MustParseAddrPort("203.0.113.1:443") {
				t.Errorf("kubernetes: %+v", svc)
			}
		}
	}
}

// TestTrimKeepsNoSecrets: what a container gets in its environment, its arguments and annotations do not get into a capture.
func TestTrimKeepsNoSecrets(t *testing.T) {
	pod := `{"kind":"PodList","items":[{"metadata":{"name":"p","namespace":"n","annotations":{"a":"hunter2"},"managedFields":[{"manager":"hunter2"}]},
		"spec":{"nodeName":"n1","containers":[{"env":[{"name":"PASSWORD","value":"hunter2"}],"args":["hunter2"]}]},"status":{"podIPs":[{"ip":"10.0.0.1"}]}}]}`
	for _, l := range capture.ObjectLists {
		if l.File != "pods.json" {
			continue
		}
		objects, err := l.Trim([]byte(pod))
		if err != nil {
			t.Fatal(err)
		}
		kept := capture.List(objects)
		if strings.Contains(string(kept), "hunter2") || strings.Contains(string(kept), "managedFields") {
			t.Errorf("kept: %s", kept)
		}
		o, err := capture.ReadObjects(map[string][]byte{l.File: kept})
		if err != nil || len(o.Pods) != 1 || o.Pods[0].IPs[0] != netip.MustParseAddr("10.0.0.1") || o.Pods[0].Node != "n1" {
			t.Errorf("read back: %+v, %v", o, err)
		}
	}
}

func TestLazyReadsOnce(t *testing.T) {
	var mu sync.Mutex
	fetched := map[string]int{}
	hosts := map[string]capture.NetNS{"a": {Inode: 1}, "b": {Inode: 2}}
	s := capture.NewSource(capture.Origin{Hosts: hosts, Fetch: func(name string) (*capture.Raw, error) {
		mu.Lock()
		defer mu.Unlock()
		fetched[name]++
		return &capture.Raw{Name: name}, nil
	}})
	if len(fetched) != 0 {
		t.Error("read before it was asked for")
	}
	for range 2 {
		if _, err := s.Host("a"); err != nil {
			t.Fatal(err)
		}
	}
	if fetched["a"] != 1 || fetched["b"] != 0 {
		t.Errorf("fetched %v", fetched)
	}
	if _, err := s.Host("c"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "a, b") {
		t.Errorf("error %v does not name those there are", err)
	}
}

// TestUnread: what a capture does not have, and what a tool could not tell, is said with its part.
func TestUnread(t *testing.T) {
	h := capture.NewLoader("node/n").Load(&capture.Raw{Outputs: map[string]capture.Output{
		"ip-link.json": {Data: []byte("[]")}, "ipset.txt": {Command: "ipset save", Error: "program not found"},
		"ip-route.json": {Command: "ip -d -j -4 route show table all", Data: []byte("no JSON")},
	}})
	for part, words := range map[snapshot.Part]string{
		snapshot.IPSets: "ipset save: program not found", snapshot.Routes: "ip -d -j -4 route show table all: ",
		snapshot.Rules: "not in the capture",
	} {
		if !strings.Contains(h.Unread[part], words) {
			t.Errorf("%s: %q, want %q", part, h.Unread[part], words)
		}
	}
	if why, ok := h.Unread[snapshot.Links]; ok {
		t.Errorf("links were read, and were not: %s", why)
	}
}

// TestIPVS: services that were read, and that there are none, is something else than not having read them.
func TestIPVS(t *testing.T) {
	for text, want := range map[string][]snapshot.VirtualService{
		"": nil, "[]": {}, `[{"protocol":6,"local":"[fd00::a]:53"},{"mark":7}]`: {
			{Protocol: packet.TCP, Local: netip.MustParseAddrPort("[fd00::a]:53")}, {Mark: 7},
		},
	} {
		outputs := map[string]capture.Output{}
		if text != "" {
			outputs[capture.IPVSFile] = capture.Output{Data: []byte(text)}
		}
		h := capture.NewLoader("node/n").Load(&capture.Raw{Outputs: outputs})
		if !reflect.DeepEqual(h.VirtualServices, want) || (h.Missing[snapshot.IPVS] != "") != (want == nil) {
			t.Errorf("%s: %#v, %s", text, h.VirtualServices, h.Missing[snapshot.IPVS])
		}
	}
}

// TestWiresByIndex: without the kernel's own word, an end in a known namespace of the same machine is found by its index. Another machine's
// kernel gives the same numbers.
func TestWiresByIndex(t *testing.T) {
	node := map[string]capture.Output{
		"ip-link.json": {Data: []byte(`[{"ifindex":4,"ifname":"veth1","flags":[],"mtu":1500}]`)},
		"wires.json":   {Data: []byte(`[{"link":"veth1","index":4,"peerIndex":2,"nsid":0,"netns":9},{"link":"far","index":5,"peerIndex":3,"nsid":1,"netns":11}]`)},
	}
	pod := map[string]capture.Output{"ip-link.json": {Data: []byte(`[{"ifindex":2,"ifname":"eth0","flags":[],"mtu":1500}]`)}}
	hosts := map[string]capture.NetNS{"node/n": {"n", 7}, "pod/a/b": {"n", 9}, "node/m": {"m", 7}, "pod/a/c": {"m", 9}, "pod/a/d": {"m", 11}}
	origin := capture.Origin{Hosts: hosts, Fetch: func(name string) (*capture.Raw, error) {
		raw := &capture.Raw{Name: name, NetNS: hosts[name].Inode, Outputs: node}
		if strings.HasPrefix(name, "pod/") {
			raw.Outputs = pod
		}
		return raw, nil
	}}
	var file bytes.Buffer
	if _, err := capture.Take(t.Context(), origin, &file, capture.Head{}); err != nil {
		t.Fatal(err)
	}
	read, err := capture.Read(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]*capture.Lazy{"origin": capture.NewSource(origin), "capture": capture.NewSource(read.Origin())} {
		for name, want := range map[string][]snapshot.Peer{
			"node/n": {{Link: "veth1", Host: "pod/a/b", PeerLink: "eth0"}},
			"node/m": {{Link: "veth1", Host: "pod/a/c", PeerLink: "eth0"}, {Link: "far", Host: "pod/a/d"}},
		} {
			h, err := s.Host(name)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(h.Peers, want) {
				t.Errorf("%s: %s: peers %+v, want %+v", what, name, h.Peers, want)
			}
		}
	}
}

// TestOutline: the outline of a host has the links, addresses and wires that the host has, and nothing else.
func TestOutline(t *testing.T) {
	f, err := capture.Open(worldA)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	source := capture.NewSource(f.Origin())
	for _, name := range source.Names() {
		host, err := source.Host(name)
		if err != nil {
			t.Fatal(err)
		}
		outline, err := snapshot.Outline(source, name)
		if err != nil {
			t.Fatal(err)
		}
		for what, same := range map[string]bool{
			"links":     reflect.DeepEqual(host.FIB.Links, outline.FIB.Links),
			"addresses": reflect.DeepEqual(host.FIB.Addresses, outline.FIB.Addresses),
			"wires":     reflect.DeepEqual(host.Peers, outline.Peers),
		} {
			if !same {
				t.Errorf("%s: the outline has other %s", name, what)
			}
		}
		if len(outline.Rules.Tables) != 0 || len(outline.FIB.Routes) != 0 || outline.Unread[snapshot.Rules] == "" {
			t.Errorf("%s: the outline has rules or routes, or does not say that they were not read", name)
		}
	}
	if _, err := snapshot.Outline(source, "node/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a host that does not exist: %v", err)
	}
}
