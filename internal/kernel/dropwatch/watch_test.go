package dropwatch_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/kernel/dropwatch"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"

	"golang.org/x/sys/unix"
)

// network is a client (10.1.0.2), a router (10.1.0.1 on a, 10.2.0.1 on b) and a server (10.2.0.2).
type network struct{ client, router, server *netns.Namespace }

func newNetwork(t *testing.T) *network {
	t.Helper()
	kerneltest.NeedRoot(t)
	dir := t.TempDir()
	n := &network{
		client: netnstest.Create(t, dir+"/client"), router: netnstest.Create(t, dir+"/router"), server: netnstest.Create(t, dir+"/server"),
	}
	for _, w := range []struct {
		host       *netns.Namespace
		link       string
		own, other string
	}{{n.client, "a", "10.1.0.2/24", "10.1.0.1/24"}, {n.server, "b", "10.2.0.2/24", "10.2.0.1/24"}} {
		host, router := netns.LinkEnd{Namespace: w.host, Name: "eth0"}, netns.LinkEnd{Namespace: n.router, Name: w.link}
		if err := netns.EnsureVeth(host, router, 1500); err != nil {
			t.Fatal(err)
		}
		netnstest.Script(t, w.host, "ip address add "+w.own+" dev eth0")
		netnstest.Script(t, n.router, "ip address add "+w.other+" dev "+w.link)
		netnstest.Script(t, w.host, "ip route add default via "+strings.TrimSuffix(w.other, "/24"))
	}
	netnstest.Script(t, n.router, "sysctl -qw net.ipv4.ip_forward=1")
	return n
}

// TestReasons: the kernel's own reason, and the packet, for the ways in which a packet is dropped.
func TestReasons(t *testing.T) {
	t.Parallel()
	const dnat = "nft add table ip d; nft 'add chain ip d p { type nat hook prerouting priority -100; }'; nft add rule ip d p dnat to 10.2.0.7; "
	for name, c := range map[string]struct {
		client, router, server string // scripts
		protocol, to           string // "tcp", and port 80 of the server, without any
		want                   string // host, reason, destination, and what it was before translation
	}{
		"nft": {router: dnat + "nft add table ip t; nft 'add chain ip t f { type filter hook forward priority 0; }'; nft add rule ip t f drop",
			want: "router NETFILTER_DROP 10.2.0.7:80 began 10.2.0.2:80"},
		"iptables": {router: "iptables -A FORWARD -j DROP", want: "router NETFILTER_DROP 10.2.0.2:80"},
		"input":    {server: "iptables -A INPUT -j DROP", want: "server NETFILTER_DROP 10.2.0.2:80"},
		"output":   {client: "iptables -A OUTPUT -j DROP", want: "client NETFILTER_DROP 10.2.0.2:80"},
		"reverse path": {
			client: "ip address add 10.1.0.9 dev eth0; ip route replace default via 10.1.0.1 src 10.1.0.9; " +
				"ip neighbour replace 10.1.0.1 lladdr 02:00:00:00:00:01 dev eth0",
			router: "ip link set dev a address 02:00:00:00:00:01; sysctl -qw net.ipv4.conf.all.rp_filter=1; ip route add 10.1.0.9 dev b",
			want:   "router IP_RPFILTER 10.2.0.2:80",
		},
		"no route":       {to: "10.3.0.1:80", want: "router IP_INNOROUTES 10.3.0.1:80"},
		"unreachable":    {router: "ip route add unreachable 10.3.0.1", to: "10.3.0.1:80", want: "router NOT_SPECIFIED 10.3.0.1:80"},
		"TCP port":       {want: "server NO_SOCKET 10.2.0.2:80"},
		"UDP port":       {protocol: "udp", want: "server NO_SOCKET 10.2.0.2:80"},
		"TTL":            {client: "sysctl -qw net.ipv4.ip_default_ttl=1", want: "router IP_INHDR 10.2.0.2:80"},
		"not forwarding": {router: "sysctl -qw net.ipv4.ip_forward=0", want: "router IP_INADDRERRORS 10.2.0.2:80"},
		"neighbour":      {to: "10.2.0.9:80", want: "router NEIGH_FAILED 10.2.0.9:80"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			netnstest.Script(t, n.client, c.client)
			netnstest.Script(t, n.router, c.router)
			netnstest.Script(t, n.server, c.server)
			w := open(t, n)
			protocol, to := cmp.Or(c.protocol, "tcp"), cmp.Or(c.to, "10.2.0.2:80")
			send(t, n.client, protocol, to)
			var got []string
			eventually(t, func() bool {
				drops, _, err := w.Read()
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range drops {
					text := fmt.Sprintf("%s %s %s", n.name(d.Namespace), d.Reason, d.Packet.DestinationEnd())
					if d.Began.Destination.IsValid() && d.Began != d.Packet.Tuple {
						text += " began " + d.Began.DestinationEnd()
					}
					got = append(got, text)
				}
				return slices.Contains(got, c.want)
			}, func() string { return fmt.Sprintf("got %q, want %q", got, c.want) })
		})
	}
}

// TestCount: no drop is lost, and what is over the map's size is counted as a whole.
func TestCount(t *testing.T) {
	t.Parallel()
	const flows, each = 20_000, 2
	n := newNetwork(t)
	netnstest.Script(t, n.client, "nft add table ip t; nft 'add chain ip t o { type filter hook output priority 0; }'; nft add rule ip t o udp dport 9 drop")
	w := open(t, n)
	err := n.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrInet4{Addr: [4]byte{10, 2, 0, 2}}
		for i := range flows * each {
			datagram := []byte{0, 0, 0, 9, 0, 8, 0, 0}
			binary.BigEndian.PutUint16(datagram, uint16(1+i%flows))
			if err := unix.Sendto(fd, datagram, 0, to); err != nil && !errors.Is(err, unix.EPERM) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var counted, uncounted uint64
	seen := map[packet.Tuple]bool{}
	for range 3 {
		drops, more, err := w.Read()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range drops {
			if d.Packet.DestinationPort.Number == 9 {
				counted += d.Count
				seen[d.Packet.Tuple] = true
			}
		}
		uncounted += more
	}
	if counted+uncounted < flows*each || uncounted == 0 || len(seen) < 10_000 {
		t.Errorf("%d packets of %d flows counted, and %d more; want %d in all, some of them uncounted", counted, len(seen), uncounted, flows*each)
	}
	send(t, n.client, "udp", "10.2.0.2:9") // there is room again
	eventually(t, func() bool {
		drops, _, err := w.Read()
		if err != nil {
			t.Fatal(err)
		}
		return len(drops) > 0
	}, func() string { return "the flow after them was not counted" })
}

// TestClose: nothing is left.
func TestClose(t *testing.T) {
	n := newNetwork(t)
	w := open(t, n)
	if programs(t) == 0 {
		t.Error("no program counts drops")
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if left := programs(t); left != 0 {
		t.Errorf("%d programs are left", left)
	}
}

// programs counts the programs that count drops, of this test alone: others may run beside it.
func programs(t *testing.T) (count int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(target, "bpf-") || strings.Contains(target, "bpf_link") {
			count++
		}
	}
	return count
}

func open(t *testing.T, n *network) *dropwatch.Watch {
	t.Helper()
	w, err := dropwatch.Open([]uint64{n.client.Inode(), n.router.Inode(), n.server.Inode()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func (n *network) name(inode uint64) string {
	return map[uint64]string{n.client.Inode(): "client", n.router.Inode(): "router", n.server.Inode(): "server"}[inode]
}

// eventually waits until done, at most 30 seconds.
func eventually(t *testing.T, done func() bool, failure func() string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(failure())
		}
	}
}

func send(t *testing.T, ns *netns.Namespace, protocol, to string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	c, err := ns.Dial(ctx, protocol, to)
	if err != nil {
		return // the drop is what counts
	}
	_, _ = c.Write([]byte("x"))
	c.Close()
}
