package diagnosis

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/capture/excerpt"
	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// cluster is a source in which every host has the same state.
type cluster struct {
	host    *snapshot.Host
	objects snapshot.Objects
}

func (c *cluster) Objects() snapshot.Objects { return c.objects }

func (c *cluster) Names() []string {
	names := []string{c.host.Name}
	for _, p := range c.objects.Pods {
		names = append(names, "pod/"+p.Namespace+"/"+p.Name)
	}
	return names
}

func (c *cluster) Host(name string) (*snapshot.Host, error) {
	if name == "node/unread" {
		return nil, fmt.Errorf("read %s: connection refused", name)
	}
	h := *c.host
	h.Name = name
	return &h, nil
}

// newNetwork returns a network whose hosts have a rule in chain OUTPUT, and a number of pods with labels of their own.
func newNetwork(t *testing.T, rule string, pods int) Network {
	t.Helper()
	text := `$ ip addr
2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP
    link/ether 02:00:00:00:00:02 brd ff:ff:ff:ff:ff:ff
    inet 10.13.76.5/24 scope global eth0
$ ip route
default via 10.13.76.1 dev eth0
$ iptables-save
*filter
:OUTPUT ACCEPT [0:0]
` + rule + "\nCOMMIT\n"
	source, err := excerpt.Read(&attribution.Book{}, nil, "n", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{}
	if c.host, err = source.Host("node/n"); err != nil {
		t.Fatal(err)
	}
	c.objects.Services = []snapshot.Service{{
		Namespace: "kube-system", Name: "kube-dns", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.10")},
		Ports: []snapshot.ServicePort{{Name: "dns", Protocol: packet.UDP, Port: 53, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.13.76.9:53")}}},
	}}
	for i := range pods {
		c.objects.Pods = append(c.objects.Pods, snapshot.Pod{
			Namespace: "shop", Name: fmt.Sprintf("web-%02d", i), Labels: map[string]string{"app": fmt.Sprint(i)},
			IPs: []netip.Addr{netip.MustParseAddr("10.13.76.5")},
		})
	}
	return Network{World: endpoint.World{Source: c}, Owners: func([]string) *explain.Owners {
		return explain.NewOwners(c.objects, &attribution.Book{})
	}}
}

const dropDNS = "-A OUTPUT -p udp -m udp --dport 53 -j DROP"

// TestDNSDrops: pods with the same labels are walked once; the numbers of walks and of sentences are limited.
func TestDNSDrops(t *testing.T) {
	for name, c := range map[string]struct {
		rule string
		pods int
		want []string
	}{
		"none dropped": {"-A OUTPUT -p udp -m udp --dport 54 -j DROP", 2, nil},
		"one dropped":  {dropDNS, 1, []string{"requests of pod/shop/web-00 to the cluster's DNS: dropped on pod shop/web-00 by filter OUTPUT 1"}},
		"too many": {dropDNS, maxDNSWalks + 3, []string{
			"web-00", "web-01", "web-02", "web-03", "requests of 16 more pods to the cluster's DNS are dropped",
			"requests to the cluster's DNS were not checked for 3 more kinds of pods",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := newNetwork(t, c.rule, c.pods).DNSDrops()
			if !slices.EqualFunc(got, c.want, strings.Contains) {
				t.Errorf("%q", got)
			}
		})
	}
	t.Run("same labels", func(t *testing.T) {
		n := newNetwork(t, dropDNS, 3)
		for i := range n.World.Source.(*cluster).objects.Pods {
			n.World.Source.(*cluster).objects.Pods[i].Labels = nil
		}
		if got := n.DNSDrops(); len(got) != 1 {
			t.Errorf("%q", got)
		}
	})
}

// TestDNSDrop: the requests have the owner of the other packet of the same program.
func TestDNSDrop(t *testing.T) {
	n := newNetwork(t, "-A OUTPUT -m owner --uid-owner 1337 -j DROP", 1)
	from := endpoint.End{Kind: endpoint.Pod, Namespace: "shop", Name: "web-00"}
	for uid, dropped := range map[uint32]bool{0: false, 1337: true} {
		var of packet.Packet
		of.HasOwner, of.UID = true, uid
		if got := n.DNSDrop(from, &of); (got != "") != dropped {
			t.Errorf("user %d: %q", uid, got)
		}
	}
}

// TestProbeDrops: a probe that a rule drops is named with the rule, and one of a host that cannot be read is unknown.
func TestProbeDrops(t *testing.T) {
	n := newNetwork(t, "-A OUTPUT -p tcp -m tcp --dport 8080 -j DROP", 0)
	probe := func(host, machine, to string) Probe {
		return Probe{Host: host, Machine: machine, From: netip.MustParseAddr("168.63.129.16"), To: netip.MustParseAddrPort(to)}
	}
	got := n.ProbeDrops([]Probe{
		probe("node/unread", "b", "10.13.76.10:8080"), probe("node/n", "a", "10.13.76.9:8080"), probe("node/n", "a", "10.13.76.9:8081"),
	})
	want := []string{
		"the load balancer's probe of a at 10.13.76.9:8080: dropped on node n by filter OUTPUT 1",
		"the load balancer's probe of b at 10.13.76.10:8080: its fate is unknown: walk: state of node/unread: ",
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("%q", got)
	}
}
