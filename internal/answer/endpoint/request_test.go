package endpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/witness"
)

// fakeSource has hosts with nothing but addresses.
type fakeSource struct {
	hosts   map[string]string // name → address
	objects snapshot.Objects
}

func (s *fakeSource) Host(name string) (*snapshot.Host, error) {
	a, ok := s.hosts[name]
	if !ok {
		return nil, fmt.Errorf("host %q: %w", name, fs.ErrNotExist)
	}
	addresses := []fib.Address{{Link: "lo", Prefix: netip.MustParsePrefix("127.0.0.1/8"), Scope: "host"}}
	if a != "" {
		addresses = append(addresses, fib.Address{Link: "eth0", Prefix: netip.MustParsePrefix(a), Scope: "global"})
	}
	return &snapshot.Host{Name: name, FIB: &fib.State{Addresses: addresses}}, nil
}

func (s *fakeSource) Names() []string {
	var names []string
	for n := range s.hosts {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func (s *fakeSource) Objects() snapshot.Objects { return s.objects }

func world1() *fakeSource {
	ip := netip.MustParseAddr
	pod := func(name, address, kind, owner string) snapshot.Pod {
		p := snapshot.Pod{Namespace: "shop", Name: name, Node: "n0", Controller: &snapshot.Controller{Kind: kind, Name: owner}}
		if _, hash, ok := strings.Cut(owner, "-"); ok {
			p.Labels = map[string]string{"pod-template-hash": hash}
		}
		if address != "" {
			p.IPs = []netip.Addr{ip(address)}
		}
		return p
	}
	ended := pod("done-abcde", "10.13.76.30", "Job.batch", "done")
	tcp80 := snapshot.ServicePort{Protocol: packet.TCP, Port: 8080}
	dns := []snapshot.ServicePort{{Name: "dns", Protocol: packet.UDP, Port: 53}, {Name: "dns-tcp", Protocol: packet.TCP, Port: 53},
		{Name: "m", Protocol: packet.TCP, Port: 9153}}
	return &fakeSource{
		hosts: map[string]string{
			"node/n0": "10.13.76.4/24", "pod/default/web-1": "10.13.76.7/24", "vm/testvm": "10.13.1.4/24", "internet/client": "198.51.100.10/24",
			"internet/ifconfig.co": "198.51.100.80/24", "fabric": "", "internet": "198.51.100.1/24",
			"netns/blue": "10.9.0.2/24", "node/vm": "10.13.76.5/24",
		},
		objects: snapshot.Objects{
			Nodes: []snapshot.Node{{Name: "n0", IPs: []netip.Addr{ip("10.13.76.4"), ip("fd00::4")}},
				{Name: "n1", IPs: []netip.Addr{ip("10.13.76.5")}}},
			Pods: []snapshot.Pod{
				{Namespace: "default", Name: "web-1", Node: "n0", IPs: []netip.Addr{ip("10.13.76.7"), ip("fd00::7")}},
				{Namespace: "default", Name: "far-1", Node: "n0", IPs: []netip.Addr{ip("10.13.76.9")}},
				{Namespace: "default", Name: "far-2", Node: "n1", IPs: []netip.Addr{ip("10.13.76.39")}},
				pod("web-6f7c8d9b5-fghij", "10.13.76.22", "ReplicaSet.apps", "web-6f7c8d9b5"),
				pod("web-6f7c8d9b5-abcde", "10.13.76.21", "ReplicaSet.apps", "web-6f7c8d9b5"),
				pod("web-6f7c8d9b5-aaaaa", "", "ReplicaSet.apps", "web-6f7c8d9b5"), // has no address yet
				pod("web-6f7c8d9b5-aaaab", "10.13.76.24", "", ""),                  // called so, and of none
				pod("starting-6f7c8d9b5-abcde", "", "ReplicaSet.apps", "starting-6f7c8d9b5"),
				pod("cut-off-6f7c8", "10.13.76.23", "ReplicaSet.apps", "long-6f7c8d9b5"),
				pod("db-0", "10.13.76.25", "StatefulSet.apps", "db"),
				pod("agent-x2x2x", "10.13.76.26", "DaemonSet.apps", "agent"),
				pod("backup-1-y3y3y", "10.13.76.27", "Job.batch", "backup"),
				pod("train-0", "10.13.76.28", "Job.batch.volcano.sh", "train"),
				pod("only-zzzzz", "10.13.76.29", "ReplicaSet.apps", "only"), // of no Deployment
				{Namespace: "kube-system", Name: "proxy", Node: "n0", IPs: []netip.Addr{ip("10.13.76.4")}, HostNetwork: true},
				{Namespace: "kube-system", Name: "proxy-1", Node: "n1", IPs: []netip.Addr{ip("10.13.76.5")}, HostNetwork: true},
			},
			Ended: []snapshot.Pod{{Namespace: "default", Name: "job-1", Node: "n0", IPs: []netip.Addr{ip("10.13.76.9")}}, ended},
			Services: []snapshot.Service{
				{Namespace: "default", Name: "behind", Type: "ClusterIP", ClusterIPs: []netip.Addr{ip("10.0.0.6")}, Ports: []snapshot.ServicePort{
					{Protocol: packet.TCP, Port: 80, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.13.76.7:80")}},
					{Protocol: packet.UDP, Port: 80},
				}},
				{Namespace: "default", Name: "elsewhere", Type: "ExternalName"},
				{Namespace: "default", Name: "web", Type: "LoadBalancer", ClusterIPs: []netip.Addr{ip("10.0.0.9")},
					External: []netip.Addr{ip("203.0.113.10")}, Ports: []snapshot.ServicePort{tcp80}},
				{Namespace: "default", Name: "inner", Type: "ClusterIP", ClusterIPs: []netip.Addr{ip("10.0.0.8")},
					Ports: []snapshot.ServicePort{tcp80}},
				{Namespace: "default", Name: "headless", Type: "ClusterIP", Ports: []snapshot.ServicePort{tcp80}},
				{Namespace: "default", Name: "syslog", ClusterIPs: []netip.Addr{ip("10.0.0.7")},
					Ports: []snapshot.ServicePort{{Protocol: packet.UDP, Port: 514}}},
				{Namespace: "kube-system", Name: "kube-dns", ClusterIPs: []netip.Addr{ip("10.0.0.10")}, Ports: dns},
			},
		},
	}
}

// TestRequest: what --from and --to mean, and what is said of those that mean nothing.
func TestRequest(t *testing.T) {
	public := func() map[string]netip.Addr {
		return map[string]netip.Addr{"testvm": netip.MustParseAddr("203.0.113.40")}
	}
	lookUp := func(_, name string) (witness.Lookup, error) {
		if name == "known.example" {
			return witness.Lookup{Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.77")}}, nil
		}
		return witness.Lookup{}, errors.New("no such host")
	}
	for _, test := range []struct {
		from, to, proto, at string
		want                string // host: packet, or the error
		note                string
	}{
		{from: "client", to: "svc/web", want: "internet/client: tcp ?:0 > 203.0.113.10:8080", note: "client stands for internet/client"},
		{from: "n0", to: "testvm:22", want: "node/n0: tcp ?:0 > 10.13.1.4:22", note: "testvm:22 stands for vm/testvm:22"},
		{from: "n1", to: "blue:80", want: "node/vm: tcp ?:0 > 10.9.0.2:80"},
		{from: "db", to: "10.13.1.4:443", want: "--from db: no node, VM or internet host is called so; did you mean sts/shop/db?"},
		{from: "client", to: "web:8080", want: "did you mean svc/default/web:8080 or deploy/shop/web:8080?"},
		{from: "client", to: "nope", want: "--to nope: no node, VM or internet host is called so; there are: internet/client, internet/ifconfig.co, "},
		{from: "1.2.3.4", to: "svc/web", want: "internet forwarded: tcp 1.2.3.4:32768-60999 > 203.0.113.10:8080",
			note: "assumed: packets of 1.2.3.4 come in at the lab's internet, where no host has that address: replies end there"},
		{from: "1.2.3.4", to: "testvm:22", want: "internet forwarded: tcp 1.2.3.4:32768-60999 > 203.0.113.40:22"},
		{from: "internet", to: "svc/web", want: "internet/client: tcp ?:0 > 203.0.113.10:8080"},
		{from: "1.2.3.4", to: "svc/web", at: "n0", want: "node/n0 forwarded: tcp 1.2.3.4:32768-60999 > 203.0.113.10:8080"},
		{from: "192.168.1.1", to: "svc/web", at: "n0", want: "node/n0 forwarded: tcp 192.168.1.1:32768-60999 > 10.0.0.9:8080"},
		{from: "pod/web-1", to: "svc/web", want: "pod/default/web-1: tcp ?:0 > 10.0.0.9:8080"},
		{from: "pod/web-1:5000", to: "svc/web:8080", want: "pod/default/web-1: tcp ?:5000 > 10.0.0.9:8080"},
		{from: "pod/web-1:5000", to: "10.0.0.9:81", want: "pod/default/web-1: tcp ?:5000 > 10.0.0.9:81"},
		{from: "pod/web-1", to: "svc/web:81", want: "it has no port 81/tcp; it has 8080/tcp; to send to that port, write the service's address"},
		{from: "pod/web-1", to: "svc/web:8080", proto: "udp", want: "it has no port 8080/udp; it has 8080/tcp"},
		{from: "pod/web-1", to: "svc/syslog", want: "pod/default/web-1: udp ?:0 > 10.0.0.7:514"},
		{from: "pod/web-1", to: "svc/kube-system/kube-dns", proto: "udp", want: "pod/default/web-1: udp ?:0 > 10.0.0.10:53"},
		{from: "pod/web-1", to: "svc/kube-system/kube-dns",
			want: "it has several ports (dns 53/udp, dns-tcp 53/tcp, m 9153/tcp); write svc/kube-system/kube-dns:PORT"},
		{from: "pod/web-1", to: "vm/testvm", want: "pod/default/web-1: tcp ?:0 > 10.13.1.4:80",
			note: "assumed: port 80, because --to names none (write vm/testvm:PORT)"},
		{from: "internet", to: "vm/testvm:22", want: "internet/client: tcp ?:0 > 203.0.113.40:22"},
		{from: "internet/ifconfig.co", to: "node/n0:30000", want: "internet/ifconfig.co: tcp ?:0 > 10.13.76.4:30000"},
		{from: "pod/kube-system/proxy", to: "internet", proto: "icmp", want: "node/n0: icmp ? > 198.51.100.10"},
		{from: "fd00::99", to: "pod/web-1:80", at: "n0", want: "node/n0 forwarded: tcp [fd00::99]:32768-60999 > [fd00::7]:80"},
		{from: "fd00::99", to: "node/n0", proto: "icmp", at: "node/n0", want: "node/n0 forwarded: ipv6-icmp fd00::99 > fd00::4"},
		{from: "netns/blue", to: "pod/web-1:80", want: "netns/blue: tcp ?:0 > 10.13.76.7:80"},
		{from: "pod/web-1", to: "netns/blue:80", want: "pod/default/web-1: tcp ?:0 > 10.9.0.2:80"},
		{from: "netns/red", to: "pod/web-1:80", want: "there is none; there are: netns/blue"},
		{from: "10.13.76.7", to: "10.13.1.4:443", want: "pod/default/web-1: tcp 10.13.76.7:0 > 10.13.1.4:443"},
		{from: "10.13.1.4", to: "10.13.76.7:443", want: "vm/testvm: tcp 10.13.1.4:0 > 10.13.76.7:443"},
		{from: "pod/far-1", to: "10.13.1.4:443", want: "node/n0 forwarded: tcp 10.13.76.9:32768-60999 > 10.13.1.4:443"},
		{from: "10.13.76.7", to: "10.13.1.4:443", at: "n0", want: "node/n0 forwarded: tcp 10.13.76.7:32768-60999 > 10.13.1.4:443"},

		// The machine vm is the node n1: it has its address.
		{from: "10.13.76.5", to: "10.13.1.4:443", want: "node/vm: tcp 10.13.76.5:0 > 10.13.1.4:443"},
		{from: "node/n1", to: "10.13.1.4:443", want: "node/vm: tcp ?:0 > 10.13.1.4:443"},
		{from: "node/vm", to: "node/n1:443", want: "node/vm: tcp ?:0 > 10.13.76.5:443"},
		{from: "pod/kube-system/proxy-1", to: "10.13.1.4:443", want: "node/vm: tcp ?:0 > 10.13.1.4:443"},
		{from: "pod/far-2", to: "10.13.1.4:443", want: "node/vm forwarded: tcp 10.13.76.39:32768-60999 > 10.13.1.4:443"},
		{from: "192.168.1.1", to: "svc/web", at: "n1", want: "node/vm forwarded: tcp 192.168.1.1:32768-60999 > 10.0.0.9:8080"},
		{from: "192.168.1.1", to: "svc/web", at: "node/n1", want: "node/vm forwarded: tcp 192.168.1.1:32768-60999 > 10.0.0.9:8080"},

		{from: "pod/web-1", to: "svc/behind:80", proto: "udp", want: "pod/default/web-1: udp ?:0 > 10.0.0.6:80",
			note: "svc/default/behind has no ready endpoint for port 80/udp"},
		{from: "pod/web-1", to: "svc/elsewhere", want: "of type ExternalName, another name for a host elsewhere"},
		{from: "pod/job-1", to: "10.13.1.4:443", want: "the pod has ended"},
		{from: "10.13.1.4", to: "pod/job-1:443", want: "the pod has ended"},

		{from: "192.168.1.1", to: "10.13.1.4:443", want: "no host here has it; say with --at where its packets come in: fabric, internet, "},
		{from: "192.168.1.1", to: "10.13.1.4:443", at: "n7", want: "--at n7: no such host; there are: fabric, "},
		{from: "svc/web", to: "10.13.1.4:443", want: "--from svc/web: none of its pods is ready; write what sends, pod/NAME"},
		{from: "svc/none", to: "10.13.1.4:443", want: "--from svc/none: there is no such service; there are: svc/default/behind, "},
		{from: "deploy/shop/web", to: "10.13.1.4:443", want: "node/n0 forwarded: tcp 10.13.76.21:32768-60999 > 10.13.1.4:443",
			note: "deploy/shop/web stands for pod/shop/web-6f7c8d9b5-abcde"},
		{from: "pod/web-1", to: "deploy/shop/web:8080", want: "pod/default/web-1: tcp ?:0 > 10.13.76.21:8080"},
		{from: "deploy/shop/long", to: "10.13.1.4:443", want: "node/n0 forwarded: tcp 10.13.76.23:32768-60999 > 10.13.1.4:443"},
		{from: "sts/shop/db", to: "10.13.1.4:443", want: "node/n0 forwarded: tcp 10.13.76.25:32768-60999 > 10.13.1.4:443",
			note: "sts/shop/db stands for pod/shop/db-0"},
		{from: "pod/web-1", to: "ds/shop/agent:81", want: "pod/default/web-1: tcp ?:0 > 10.13.76.26:81"},
		{from: "pod/web-1", to: "job/shop/backup:81", want: "pod/default/web-1: tcp ?:0 > 10.13.76.27:81"},
		{from: "job/shop/done", to: "10.13.1.4:443", want: "--from job/shop/done: its pods have ended"},
		{from: "job/shop/train", to: "10.13.1.4:443", want: "--from job/shop/train: it has no pods, or does not exist; those with pods: job/shop/backup"},
		{from: "sts/shop/web", to: "10.13.1.4:443", want: "--from sts/shop/web: it has no pods, or does not exist (if it has 0 replicas, 'kubectl -n shop scale sts/web --replicas=1' starts one); those with pods: sts/shop/db"},
		{from: "deploy/shop/only", to: "10.13.1.4:443", want: "'kubectl -n shop scale deploy/only --replicas=1' starts one); those with pods: deploy/shop/long, deploy/shop/starting, deploy/shop/web"},
		{from: "deploy/shop/starting", to: "10.13.1.4:443", want: "--from deploy/shop/starting: none of its pods has an address"},
		{from: "deploy/web", to: "10.13.1.4:443",
			want: "'kubectl -n default scale deploy/web --replicas=1' starts one); those with pods: deploy/shop/long, deploy/shop/starting, deploy/shop/web"},
		{from: "svc/behind:4000", to: "10.13.1.4:443", want: "pod/default/web-1: tcp ?:4000 > 10.13.1.4:443",
			note: "svc/behind:4000 stands for pod/default/web-1:4000"},
		{from: "svc/behind:http", to: "10.13.1.4:443", want: "the port of a sender is a number; leave out :http"},

		{from: "pod/web-1", to: "svc/kube-system/kube-dns:dns", want: "pod/default/web-1: udp ?:0 > 10.0.0.10:53"},
		{from: "pod/web-1", to: "svc/kube-system/kube-dns:m", want: "pod/default/web-1: tcp ?:0 > 10.0.0.10:9153"},
		{from: "pod/web-1", to: "svc/kube-system/kube-dns:dns", proto: "tcp",
			want: "it has no tcp port named dns; it has dns 53/udp, dns-tcp 53/tcp, m 9153/tcp"},
		{from: "pod/web-1", to: "svc/kube-system/kube-dns:x", want: "it has no tcp port named x"},

		{from: "pod/web-1", to: "kube-dns.kube-system.svc.cluster.local:dns", want: "pod/default/web-1: udp ?:0 > 10.0.0.10:53",
			note: "kube-dns.kube-system.svc.cluster.local:dns stands for svc/kube-system/kube-dns:dns; " +
				"its known address is taken, because the resolver did not answer: no such host"},
		{from: "web.default.svc", to: "10.13.1.4:443", want: "none of its pods is ready"},
		{from: "behind.default.svc", to: "10.13.1.4:443", want: "pod/default/web-1: tcp ?:0 > 10.13.1.4:443"},
		{from: "pod/web-1", to: "web.default", want: "pod/default/web-1: tcp ?:0 > 10.0.0.9:8080"},
		{from: "pod/web-1", to: "headless.default.svc", want: "a headless service"},
		{from: "pod/web-1", to: "web.default.svc.cluster.local.", want: "pod/default/web-1: tcp ?:0 > 10.0.0.9:8080"},
		{from: "pod/web-1", to: "nope.default.svc.cluster.local", want: "there is no such service"},
		{from: "pod/web-1", to: "nope.cluster.local", want: "unknown name; a service's is NAME.NAMESPACE.svc.cluster.local"},
		{from: "pod/web-1", to: "10-13-76-9.default.pod.cluster.local:80", want: "pod/default/web-1: tcp ?:0 > 10.13.76.9:80"},
		{from: "pod/web-1", to: "web.default.pod", want: "unknown name; a pod's is its address with dashes"},
		{from: "internet", to: "web.default.svc", want: "only pods resolve names of the cluster's DNS, not internet; write svc/default/web"},
		{from: "ifconfig.co", to: "web.default.svc", want: "only pods resolve names of the cluster's DNS, not internet; write svc/default/web"},
		{from: "ifconfig.co", to: "svc/web", want: "internet/ifconfig.co: tcp ?:0 > 203.0.113.10:8080"},
		{from: "pod/web-1", to: "ifconfig.co:443", want: "pod/default/web-1: tcp ?:0 > 198.51.100.80:443"},
		{from: "pod/web-1", to: "known.example:443", want: "pod/default/web-1: tcp ?:0 > 203.0.113.77:443",
			note: "known.example:443 stands for 203.0.113.77:443"},
		{from: "pod/web-1", to: "known.example:https", want: "it is not a service's, whose ports have names"},
		{from: "pod/web-1", to: "other.example", want: "--to other.example: unknown name: no such host; write its address"},
		{from: "pod/nope", to: "10.13.1.4:443",
			want: "there is no such pod; there are: pod/default/far-1, pod/default/far-2, pod/default/web-1, "},
		{from: "vm/nope", to: "10.13.1.4:443", want: "there is none; there are: vm/testvm"},
		{from: "internet", to: "svc/inner", want: "it is of type ClusterIP and has no load balancer address"},
		{from: "pod/web-1", to: "svc/headless", want: "a headless service"},
		{from: "pod/web-1", to: "svc/nope",
			want: "there is no such service; there are: svc/default/behind, svc/default/elsewhere, svc/default/headless, svc/default/inner, "},
		{from: "pod/web-1", to: "svc/web", proto: "icmp", want: "services answer no icmp"},
		{from: "pod/web-1", to: "svc/web", proto: "udp", want: "it has no udp port; it has 8080/tcp"},
		{from: "pod/web-1", to: "vm/testvm:80", proto: "icmp", want: "icmp has no ports; leave out :80"},
		{from: "fd00::99", to: "10.13.1.4:80", at: "n0", want: "different address families"},
		{from: "fd00::99", to: "vm/testvm:80", at: "n0", want: "it has no address of the sender's family; it has 10.13.1.4"},
	} {
		t.Run(test.from+" "+test.to+" "+test.proto+test.at, func(t *testing.T) {
			from, err := Parse(test.from)
			if err != nil {
				t.Fatal(err)
			}
			to, err := Parse(test.to)
			if err != nil {
				t.Fatal(err)
			}
			var proto packet.Protocol
			if test.proto != "" {
				if proto, err = packet.ParseProtocol(test.proto); err != nil {
					t.Fatal(err)
				}
			}
			req, err := Read(World{Source: world1(), Public: public, At: test.at, LookUp: lookUp}, from, to, proto)
			got := req.Host
			if req.Forwarded {
				got += " forwarded"
			}
			got += ": " + req.Packet.String()
			if err != nil {
				if !strings.Contains(err.Error(), test.want) {
					t.Fatalf("error %q, want %q", err, test.want)
				}
				return
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if test.note != "" && !slices.Contains(req.Notes, test.note) {
				t.Errorf("notes %q, want %q", req.Notes, test.note)
			}
		})
	}
}

// TestLookUps shows whose resolver is asked on a cluster, which of the addresses is taken, and what is said of the others.
func TestLookUps(t *testing.T) {
	var many []netip.Addr
	for i := range 12 {
		many = append(many, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}))
	}
	v6 := netip.MustParseAddr("2001:db8::7")
	for _, test := range []struct {
		from, to  string
		found     witness.Lookup
		asked     string
		want, how string
	}{
		{"pod/web-1", "example.com:443", witness.Lookup{Name: "example.com", Addresses: []netip.Addr{v6, many[1], many[2]}, Server: "10.0.0.10"},
			"pod/default/web-1 example.com", "203.0.113.1:443",
			": 10.0.0.10 has it for example.com, asked from pod/default/web-1; further addresses, which are not walked: 2001:db8::7, 203.0.113.2"},
		{"pod/far-1", "example.com.:443", witness.Lookup{Name: "example.com.", Addresses: many, More: 100, Server: "/etc/hosts"},
			"pod/default/far-1 example.com.", "203.0.113.0:443",
			": /etc/hosts of pod/default/far-1 has it, and no resolver is asked; further addresses, which are not walked: 203.0.113.1, 203.0.113.2, " +
				"203.0.113.3, 203.0.113.4, 203.0.113.5, 203.0.113.6, 203.0.113.7, 203.0.113.8 and 103 more"},
		{"pod/web-1", "six.example:443", witness.Lookup{Name: "six.example", Addresses: []netip.Addr{v6}, Server: "10.0.0.10"},
			"pod/default/web-1 six.example", "[2001:db8::7]:443", ": 10.0.0.10 has it for six.example, asked from pod/default/web-1"},
		{"pod/far-1", "six.example:443", witness.Lookup{Name: "six.example", Addresses: []netip.Addr{v6}, Server: "10.0.0.10"},
			"pod/default/far-1 six.example", "it has no address of the sender's family; it has 2001:db8::7", ""},
		{"pod/web-1", "half.example:443", witness.Lookup{Name: "half.example", Addresses: many[1:2], Server: "10.0.0.10", Unanswered: "IPv6 addresses unknown: no"},
			"pod/default/web-1 half.example", "203.0.113.1:443", ": 10.0.0.10 has it for half.example, asked from pod/default/web-1; IPv6 addresses unknown: no"},
		{"pod/far-1", "half.example:443", witness.Lookup{Name: "half.example", Addresses: []netip.Addr{v6}, Server: "10.0.0.10", Unanswered: "IPv4 addresses unknown: no"},
			"pod/default/far-1 half.example", "it has no address of the sender's family; it has 2001:db8::7; IPv4 addresses unknown: no", ""},
		{"node/n0", "none.example", witness.Lookup{Server: "10.0.0.10"}, "node/n0 none.example",
			"unknown name: 10.0.0.10 has no address for it, asked from node/n0; write its address", ""},
		{"node/n0", "none.example", witness.Lookup{Server: "10.0.0.10", Unanswered: "silence"}, "node/n0 none.example",
			"unknown name: silence; write its address", ""},
		{"10.13.76.7", "example.com:443", witness.Lookup{Name: "example.com", Addresses: many[1:2], Server: "10.0.0.10"},
			"pod/default/web-1 example.com", "203.0.113.1:443", ": 10.0.0.10 has it for example.com, asked from pod/default/web-1"},
	} {
		t.Run(test.from+" "+test.to, func(t *testing.T) {
			from, err := Parse(test.from)
			if err != nil {
				t.Fatal(err)
			}
			to, err := Parse(test.to)
			if err != nil {
				t.Fatal(err)
			}
			asked := ""
			w := World{Source: world1(), Far: true, LookUp: func(host, name string) (witness.Lookup, error) {
				asked = host + " " + name
				return test.found, nil
			}}
			got, err := Read(w, from, to, 0)
			if asked != test.asked {
				t.Errorf("asked %s, want %s", asked, test.asked)
			}
			if err != nil {
				if !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %s", err, test.want)
				}
				return
			}
			if end := got.Packet.DestinationEnd(); end != test.want {
				t.Errorf("to %s, want %s", end, test.want)
			}
			if note := test.to + " stands for " + test.want + test.how; !slices.Contains(got.Notes, note) {
				t.Errorf("notes %q, want %q", got.Notes, note)
			}
			w.LookUp = nil
			if _, err := Read(w, from, to, 0); err == nil || !strings.Contains(err.Error(), "add --resolve to ask the sender's resolver") {
				t.Errorf("without a resolver: %v", err)
			}
			if _, err := Sender(w.Source.Objects(), to); err == nil || strings.Contains(err.Error(), "--resolve") {
				t.Errorf("of a sender: %v", err)
			}
		})
	}
}

// TestUnknownOwners shows that in a capture without owner references no name of a pod tells whose it is.
func TestUnknownOwners(t *testing.T) {
	src := world1()
	for i := range src.objects.Pods {
		src.objects.Pods[i].Controller = nil
	}
	for _, from := range []string{"deploy/shop/web", "sts/shop/db", "ds/shop/agent", "job/shop/backup"} {
		end, err := Parse(from)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Sender(src.objects, end)
		if err == nil || !strings.Contains(err.Error(), "owner references are unknown, as in captures by older versions; write pod/NAME") {
			t.Errorf("%s: %v", from, err)
		}
	}
}

// TestHosts shows that the hosts that have the ends' addresses are known, also those that the packet may not come to.
func TestHosts(t *testing.T) {
	for _, test := range []struct {
		from, to, at string
		noNodes, far bool
		want         []string
	}{
		{from: "pod/web-1", to: "198.51.100.80:443", want: []string{"internet/ifconfig.co"}},
		{from: "pod/web-1", to: "10.13.1.4:443", want: []string{"vm/testvm"}},
		{from: "198.51.100.80", to: "10.13.1.4:443", at: "n0", want: []string{"vm/testvm", "internet/ifconfig.co"}},
		{from: "pod/web-1", to: "198.51.100.99:443"},
		{from: "pod/web-1", to: "10.13.76.5:443"}, // the objects have its name
		{from: "pod/web-1", to: "10.13.76.5:443", noNodes: true, want: []string{"node/vm"}},
		{from: "pod/web-1", to: "198.51.100.80:443", far: true},
	} {
		t.Run(test.from+" "+test.to, func(t *testing.T) {
			src := world1()
			if test.noNodes {
				src.objects.Nodes = nil
			}
			from, err := Parse(test.from)
			if err != nil {
				t.Fatal(err)
			}
			to, err := Parse(test.to)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Read(World{Source: src, At: test.at, Far: test.far}, from, to, 0)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.Hosts, test.want) {
				t.Errorf("hosts %q, want %q", got.Hosts, test.want)
			}
		})
	}
}

// TestNobodyBehind: a service whose endpoints are known is not said to have none, nor is one of which they are not known.
func TestNobodyBehind(t *testing.T) {
	src := world1()
	r := &places{src: src, objects: src.objects, names: src.Names()}
	for i := range src.objects.Services {
		s := &src.objects.Services[i]
		for _, p := range s.Ports {
			if got, want := r.hasNoEndpoints(s, p.Port, p.Protocol), len(p.Endpoints) == 0; got != want {
				t.Errorf("%s:%d/%s without endpoints: %v, want %v", s.Name, p.Port, p.Protocol, got, want)
			}
		}
		if s.Name == "behind" && r.hasNoEndpoints(s, 81, packet.TCP) {
			t.Error("an unknown port has no endpoints")
		}
	}
	r.objects.Services = slices.DeleteFunc(slices.Clone(r.objects.Services), func(s snapshot.Service) bool { return s.Name == "behind" })
	for i := range r.objects.Services {
		s := &r.objects.Services[i]
		for _, p := range s.Ports {
			if r.hasNoEndpoints(s, p.Port, p.Protocol) {
				t.Errorf("%s: endpoints are not known, and said to be none", s.Name)
			}
		}
	}
}

// countingSource counts the hosts that are read.
type countingSource struct {
	snapshot.Source
	read int
}

func (c *countingSource) Host(name string) (*snapshot.Host, error) {
	c.read++
	return c.Source.Host(name)
}

// TestFar: of a sender that no object names, hosts that are far are not searched: reading one may start a pod.
func TestFar(t *testing.T) {
	for _, far := range []bool{false, true} {
		src := &countingSource{Source: world1()}
		from, _ := Parse("192.168.99.99")
		to, _ := Parse("10.13.1.4:80")
		_, err := Read(World{Source: src, Far: far}, from, to, 0)
		if err == nil || !strings.Contains(err.Error(), "--at") || (src.read == 0) != far {
			t.Errorf("far %v: %d hosts were read: %v", far, src.read, err)
		}
	}
}

// TestUnread: where the API server does not answer, that is the reason, not a name that is not there.
func TestUnread(t *testing.T) {
	src := world1()
	src.objects, src.hosts = snapshot.Objects{}, map[string]string{"node/n0": src.hosts["node/n0"]}
	w := World{Source: src, Unread: errors.New("the API server does not answer: dial tcp 127.0.0.1:1: connect: connection refused")}
	for _, to := range []string{"svc/web", "pod/web-1:80"} {
		end, err := Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		from, err := Parse("node/n0")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Read(w, from, end, 0); err == nil || !strings.Contains(err.Error(), "connection refused; 'packetwalk status' says") {
			t.Errorf("%s: %v", to, err)
		}
	}
}

// TestContainerGroups: a pod on a virtual node is its container group, by the name or, where names are redacted, by the address. The
// virtual node's own address is its connector's pod's.
func TestContainerGroups(t *testing.T) {
	ip := netip.MustParseAddr
	src := world1()
	src.hosts["container-group/default-vn-1"], src.hosts["container-group/host-12345678"] = "10.13.100.4/24", "10.13.100.5/24"
	src.hosts["pod/kube-system/connector"] = "10.13.76.5/24"
	src.objects.Nodes = append(src.objects.Nodes, snapshot.Node{Name: "virtual", IPs: []netip.Addr{ip("10.13.76.5")}})
	src.objects.Pods = append(src.objects.Pods,
		snapshot.Pod{Namespace: "default", Name: "vn-1", Node: "virtual", IPs: []netip.Addr{ip("10.13.100.4")}},
		snapshot.Pod{Namespace: "ns-1", Name: "pod-1", Node: "virtual", IPs: []netip.Addr{ip("10.13.100.5")}},
		snapshot.Pod{Namespace: "kube-system", Name: "connector", Node: "n0", IPs: []netip.Addr{ip("10.13.76.5")}})
	for from, want := range map[string]string{
		"pod/vn-1": "container-group/default-vn-1", "10.13.100.4": "container-group/default-vn-1",
		"pod/ns-1/pod-1": "container-group/host-12345678",
		"10.13.76.5":     "pod/kube-system/connector",
	} {
		end, err := Parse(from)
		if err != nil {
			t.Fatal(err)
		}
		to, err := Parse("vm/testvm:80")
		if err != nil {
			t.Fatal(err)
		}
		if req, err := Read(World{Source: src}, end, to, 0); err != nil || req.Host != want {
			t.Errorf("from %s the walk begins on %q, want %q: %v", from, req.Host, want, err)
		}
	}
}

// TestSender: of a service its first endpoint that is a pod sends.
func TestSender(t *testing.T) {
	objects := snapshot.Objects{
		Pods: []snapshot.Pod{{Namespace: "shop", Name: "web-2", IPs: []netip.Addr{netip.MustParseAddr("10.13.76.8")}}},
		Services: []snapshot.Service{{Namespace: "shop", Name: "web", Ports: []snapshot.ServicePort{{
			Endpoints: []netip.AddrPort{netip.MustParseAddrPort("198.51.100.9:80"), netip.MustParseAddrPort("10.13.76.8:80")},
		}}}},
	}
	from, err := Sender(objects, End{Kind: Service, Namespace: "shop", Name: "web"})
	if want := (End{Kind: Pod, Namespace: "shop", Name: "web-2"}); err != nil || from != want {
		t.Errorf("%s, %v; want %s", from, err, want)
	}
}

// TestPublicUnknown says that a VM's public address is unknown where the lab does not tell it.
func TestPublicUnknown(t *testing.T) {
	unknown := func() map[string]netip.Addr { return nil }
	_, err := Read(World{Source: world1(), Public: unknown}, End{Kind: Internet}, End{Kind: VM, Name: "testvm", Port: 80}, 0)
	if err == nil || !strings.Contains(err.Error(), "its public address is unknown, because the lab's process does not answer") {
		t.Errorf("%v", err)
	}
}

// TestQuery shows which query the sender's resolver gets for a name, and what the name then stands for.
func TestQuery(t *testing.T) {
	service, elsewhere := netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("203.0.113.9")
	found := func(server string, all ...netip.Addr) witness.Lookup {
		return witness.Lookup{Name: "whole.example", Server: server, Addresses: all}
	}
	overTCP := found("10.0.0.10", elsewhere)
	overTCP.OverTCP = true
	for name, test := range map[string]struct {
		from, to, at string
		found        witness.Lookup
		query        string // "" for none
		stands       string // what the name stands for, or the error
	}{
		"other name":       {"pod/web-1", "example.com:443", "", found("10.0.0.10", elsewhere), "pod/default/web-1: udp ?:0 > 10.0.0.10:53 whole.example", "203.0.113.9:443"},
		"by TCP":           {"pod/web-1", "example.com:443", "", overTCP, "pod/default/web-1: tcp ?:0 > 10.0.0.10:53 whole.example", "203.0.113.9:443"},
		"from an address":  {"10.13.76.7", "example.com:443", "", found("10.0.0.10", elsewhere), "pod/default/web-1: udp 10.13.76.7:0 > 10.0.0.10:53 whole.example", "203.0.113.9:443"},
		"service":          {"pod/web-1", "web.default.svc", "", found("10.0.0.10", service), "pod/default/web-1: udp ?:0 > 10.0.0.10:53 whole.example", "svc/default/web"},
		"another's":        {"pod/web-1", "web.default.svc:443", "", found("10.0.0.10", elsewhere), "pod/default/web-1: udp ?:0 > 10.0.0.10:53 whole.example", "203.0.113.9:443"},
		"pod of a service": {"pod/web-1", "web-0.web.default.svc:443", "", found("10.0.0.10", elsewhere), "pod/default/web-1: udp ?:0 > 10.0.0.10:53 whole.example", "203.0.113.9:443"},
		"hosts file":       {"pod/web-1", "example.com:443", "", found(witness.HostsFile, elsewhere), "", "203.0.113.9:443"},
		"no answer":        {"pod/web-1", "example.com:443", "", witness.Lookup{Name: "example.com", Server: "10.0.0.10", Unanswered: "silence"}, "pod/default/web-1: udp ?:0 > 10.0.0.10:53 example.com unresolved", "unknown name: silence"},
		"known, no answer": {"pod/web-1", "web.default.svc", "", witness.Lookup{Name: "web.default.svc", Server: "10.0.0.10", Unanswered: "silence"}, "pod/default/web-1: udp ?:0 > 10.0.0.10:53 web.default.svc unresolved", "svc/default/web"},
		"known, not so":    {"node/n0", "web.default.svc", "", found("168.63.129.16"), "node/n0: udp ?:0 > 168.63.129.16:53 whole.example unresolved", "168.63.129.16 has no address for it"},
		"unknown server":   {"pod/web-1", "example.com:443", "", found("", elsewhere), "", "203.0.113.9:443"},
		"comes in":         {"pod/web-1", "example.com:443", "n0", found("10.0.0.10", elsewhere), "", "203.0.113.9:443"},
		"address":          {"pod/web-1", "203.0.113.9:443", "", witness.Lookup{}, "", ""},
		"Kubernetes end":   {"pod/web-1", "svc/web", "", witness.Lookup{}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			from, err := Parse(test.from)
			if err != nil {
				t.Fatal(err)
			}
			to, err := Parse(test.to)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Read(World{Source: world1(), At: test.at, LookUp: func(string, string) (witness.Lookup, error) { return test.found, nil }}, from, to, 0)
			query := ""
			if q := got.Query; q != nil {
				if query = q.Host + ": " + q.Packet.String() + " " + q.Name; !q.Resolved {
					query += " unresolved"
				}
				if q.Unanswered != test.found.Unanswered {
					t.Errorf("unanswered: %q", q.Unanswered)
				}
			}
			if query != test.query {
				t.Errorf("query %s, want %s", query, test.query)
			}
			note := fmt.Sprint(err)
			for _, n := range got.Notes {
				if strings.HasPrefix(n, test.to+" stands for ") {
					note = n
				}
			}
			if !strings.Contains(note, test.stands) {
				t.Errorf("%s; want %s", note, test.stands)
			}
		})
	}
}

// TestNoResolver shows that a walk to a name says so where no resolver is asked.
func TestNoResolver(t *testing.T) {
	for far, want := range map[bool]string{
		false: "web.default stands for svc/default/web; no resolver is asked",
		true:  "web.default stands for svc/default/web; no resolver is asked (add --resolve to ask the sender's)",
	} {
		from, _ := Parse("pod/web-1")
		to, err := Parse("web.default")
		if err != nil {
			t.Fatal(err)
		}
		got, err := Read(World{Source: world1(), Far: far}, from, to, 0)
		if err != nil || !slices.Contains(got.Notes, want) || got.Query != nil {
			t.Errorf("%v, %q, %v", err, got.Notes, got.Query)
		}
	}
}

// TestAt takes what --from and --to take as the host where packets come in.
func TestAt(t *testing.T) {
	for _, tt := range []struct{ at, host string }{
		{"n0", "node/n0"}, {"node/n0", "node/n0"}, {"testvm", "vm/testvm"}, {"10.13.1.4", "vm/testvm"}, {"198.51.100.80", "internet/ifconfig.co"},
		{"internet/ifconfig.co", "internet/ifconfig.co"}, {"pod/web-1", "pod/default/web-1"}, {"10.13.76.7", "pod/default/web-1"},
		{"pod/web-1:80", ""}, {"192.0.2.99", ""}, {"pod/none", ""}, {"nowhere", ""},
	} {
		t.Run(tt.at, func(t *testing.T) {
			from, to := End{Kind: Address, Address: netip.MustParseAddr("192.0.2.1")}, End{Kind: Address, Address: netip.MustParseAddr("10.13.76.4"), Port: 80}
			got, err := Read(World{Source: world1(), At: tt.at}, from, to, 0)
			switch {
			case tt.host == "" && (err == nil || !strings.Contains(err.Error(), "--at "+tt.at+": no such host")):
				t.Errorf("got %s, %v", got.Request.Host, err)
			case tt.host != "" && (err != nil || got.Request.Host != tt.host):
				t.Errorf("got %s, %v, want %s", got.Request.Host, err, tt.host)
			}
		})
	}
}
