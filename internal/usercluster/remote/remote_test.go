package remote_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/netnstest"
	"packetwalk.dev/internal/usercluster/remote"
	"packetwalk.dev/internal/usercluster/remote/localhost"
)

// world is two hosts on one machine: node/n, and pod/default/a behind a veth, whose packets it translates.
type world struct {
	t     *testing.T
	hosts map[string]*netns.Namespace
}

func newWorld(t *testing.T) *world {
	kerneltest.NeedRoot(t)
	w := &world{t, map[string]*netns.Namespace{}}
	dir := t.TempDir()
	for i, name := range []string{"node/n", "pod/default/a"} {
		ns, err := netns.Create(fmt.Sprintf("%s/%d", dir, i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Remove() })
		w.hosts[name] = ns
	}
	node, pod := w.hosts["node/n"], w.hosts["pod/default/a"]
	ends := [2]netns.LinkEnd{{Namespace: node, Name: "veth0"}, {Namespace: pod, Name: "eth0"}}
	if err := netns.EnsureVeth(ends[0], ends[1], 1500); err != nil {
		t.Fatal(err)
	}
	w.sh("node/n", `ip addr add 10.1.0.1/24 dev veth0; ip link set veth0 up; sysctl -qw net.ipv4.ip_forward=1; ip addr add 203.0.113.9/32 dev lo
iptables-nft -t nat -A POSTROUTING -s 10.1.0.0/24 ! -d 10.1.0.0/24 -j MASQUERADE
iptables-nft -A INPUT -i veth0 -p tcp --dport 81 -j REJECT`)
	w.sh("pod/default/a", "ip addr add 10.1.0.2/24 dev eth0; ip link set eth0 up; ip route add default via 10.1.0.1")
	for _, end := range ends {
		netnstest.WaitUp(t, end.Namespace, end.Name)
	}
	l, err := w.hosts["node/n"].Listen(t.Context(), "tcp", "203.0.113.9:80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return w
}

func (w *world) sh(host, script string) {
	w.t.Helper()
	cmd := exec.Command("sh", "-e")
	cmd.Stdin = strings.NewReader(script)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := w.hosts[host].Do(cmd.Run); err != nil {
		w.t.Fatalf("%s: %v: %s", host, err, out.String())
	}
}

// Look implements remote.Machine.
func (w *world) Look(ctx context.Context) (capture.Origin, map[string]string, error) {
	paths := map[string]string{}
	for name, ns := range w.hosts {
		paths[name] = ns.Path()
	}
	return dump.Origin(ctx, paths, ""), paths, nil
}

// Open implements remote.Machine.
func (w *world) Open(path string, inode uint64) (proof.Place, func(), error) {
	return localhost.Machine("").Open(path, inode)
}

// LookUp implements remote.Machine.
func (w *world) LookUp(ctx context.Context, path string, inode uint64, name string) (witness.Lookup, error) {
	return localhost.Machine("").LookUp(ctx, path, inode, name)
}

// talk begins a conversation with a server in this process. What served returns is given when it has ended.
func (w *world) talk(version string) (*remote.Node, net.Conn, <-chan error, error) {
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() {
		defer far.Close()
		served <- remote.Serve(w.t.Context(), far, far, w, "v1")
	}()
	node, err := remote.Open(w.t.Context(), near, version)
	return node, far, served, err
}

func (w *world) source(ctx context.Context, node *remote.Node) *capture.Lazy {
	hosts, err := node.Hosts(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	o := capture.Origin{Hosts: map[string]capture.NetNS{}, Fetch: func(name string) (*capture.Raw, error) { return node.Fetch(ctx, name) }}
	for name, inode := range hosts {
		o.Hosts[name] = capture.NetNS{Machine: "n", Inode: inode}
	}
	return capture.NewSource(o)
}

// places returns the places of the node, by way of the conversation.
func places(node *remote.Node, w *world) proof.Places {
	return func(host string) (proof.Place, error) {
		if w.hosts[host] == nil {
			return nil, fmt.Errorf("host %s: %w", host, fs.ErrNotExist)
		}
		return node.Place(host), nil
	}
}

func to(protocol packet.Protocol, address string, port uint16) walk.Request {
	p := packet.Packet{}
	p.Protocol, p.Destination, p.DestinationPort = protocol, netip.MustParseAddr(address), packet.Exactly(port)
	return walk.Request{Host: "pod/default/a", Packet: p}
}

// TestLive: the proof by way of a conversation agrees with the kernel, as it does on the machine itself.
func TestLive(t *testing.T) {
	w := newWorld(t)
	node, _, served, err := w.talk("v1")
	if err != nil {
		t.Fatal(err)
	}
	for _, request := range []walk.Request{
		to(packet.TCP, "203.0.113.9", 80), to(packet.TCP, "203.0.113.9", 81), to(packet.UDP, "203.0.113.9", 9), to(packet.ICMP, "203.0.113.9", 0),
	} {
		_, report, err := proof.Once(t.Context(), w.source(t.Context(), node), places(node, w), request, false)
		if err != nil {
			t.Fatal(err)
		}
		if !report.Complete() || report.Steps < 5 {
			t.Errorf("%s: %s", request.Packet.Tuple, report)
		}
	}
	if err := node.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("served: %v", err)
	}
	w.quiet()
}

// TestBrokenOff: a conversation that breaks off in the middle of a proof leaves nothing.
func TestBrokenOff(t *testing.T) {
	w := newWorld(t)
	node, conn, served, err := w.talk("v1")
	if err != nil {
		t.Fatal(err)
	}
	what := proof.WatchRequest{Traced: witness.Filters(to(packet.TCP, "203.0.113.9", 80).Packet.Tuple)}
	watcher, err := node.Place("node/n").Watch(t.Context(), what, make(chan struct{}, 1))
	if err != nil {
		t.Fatal(err)
	}
	if w.traces() == 0 || w.captures() == 0 {
		t.Error("nothing is traced, or captured")
	}
	w.sh("node/n", "iptables-nft -A INPUT -i veth0 -p tcp --dport 82 -j DROP")
	proved := make(chan error, 1)
	source := w.source(t.Context(), node)
	go func() { // waits for seconds for an answer that does not come
		_, _, err := proof.Once(t.Context(), source, places(node, w), to(packet.TCP, "203.0.113.9", 82), false)
		proved <- err
	}()
	for begin := time.Now(); w.captures() < 3; time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > 20*time.Second {
			t.Fatal("the proof does not begin")
		}
	}
	conn.Close()
	<-served
	if err := <-proved; err == nil || !strings.Contains(err.Error(), "broke off") {
		t.Errorf("proof: %v", err)
	}
	w.quiet()
	if _, err := watcher.Now(t.Context()); err == nil {
		t.Error("it still sees something")
	}
	if err := node.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "broke off") {
		t.Errorf("ping: %v", err)
	}
}

// traces counts the tables of traces.
func (w *world) traces() (n int) {
	for _, ns := range w.hosts {
		cmd := exec.Command("nft", "list", "tables")
		var out strings.Builder
		cmd.Stdout = &out
		if err := ns.Do(cmd.Run); err != nil {
			w.t.Fatal(err)
		}
		for _, table := range strings.Fields(out.String()) {
			if witness.IsTraceTable(table) {
				n++
			}
		}
	}
	return n
}

// captures counts the packet sockets (proc_pid_net(5): a line of names, and one of each).
func (w *world) captures() (n int) {
	for _, ns := range w.hosts {
		err := ns.Do(func() error {
			text, err := os.ReadFile("/proc/thread-self/net/packet")
			n += strings.Count(string(text), "\n") - 1
			return err
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return n
}

func (w *world) quiet() {
	w.t.Helper()
	eventually.Succeeds(w.t, 30*time.Second, func() error {
		if traces, captures := w.traces(), w.captures(); traces+captures > 0 {
			return fmt.Errorf("%d tables of traces and %d captures are left", traces, captures)
		}
		return nil
	})
}

// TestHosts: hosts and their states come as they are on the machine; one that is not there is fs.ErrNotExist.
func TestHosts(t *testing.T) {
	w := newWorld(t)
	node, _, _, err := w.talk("v1")
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	for name, ns := range w.hosts {
		eventually.Succeeds(t, 30*time.Second, func() error { // the kernel adds IPv6's routes some time after a link is up
			got, err := node.Fetch(t.Context(), name)
			if err != nil {
				return err
			}
			if got.NetNS != ns.Inode() || !strings.Contains(string(got.Outputs["ip-address.json"].Data), "10.1.0.") {
				return fmt.Errorf("%s: %d, %s", name, got.NetNS, got.Outputs["ip-address.json"].Data)
			}
			local, err := (&dump.Dumper{}).All(t.Context(), name, ns)
			if err != nil {
				return err
			}
			here, there := capture.NewLoader(name).Load(local), capture.NewLoader(name).Load(got)
			if changed := snapshot.Changes(here, there); len(changed) > 0 || len(got.Outputs) != len(local.Outputs) || len(there.Unread) > 0 {
				return fmt.Errorf("%s: in the state that came, other than in the machine's, are %v; missing %v", name, changed, there.Unread)
			}
			return nil
		})
	}
	if _, err := node.Fetch(t.Context(), "pod/default/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	p := to(packet.TCP, "203.0.113.9", 80).Packet
	p.Protocol = packet.SCTP
	if _, err := node.Place("pod/default/a").Prepare(t.Context(), proof.SendRequest{Packet: p}); !errors.Is(err, witness.ErrUnsendable) {
		t.Errorf("what cannot be sent: %v", err)
	}
}

// TestOpen: what is no packetwalk, or another one, is told at once.
func TestOpen(t *testing.T) {
	w := newWorld(t)
	_, _, _, err := w.talk("v2")
	var version *remote.VersionError
	if !errors.As(err, &version) || version.Node != "v1" {
		t.Errorf("another version: %v", err)
	}
	near, far := net.Pipe()
	go func() {
		go io.Copy(io.Discard, far)
		_, _ = io.WriteString(far, "exec: \"packetwalk\": \x1b[31mnot found\nmore\n")
		far.Close()
	}()
	_, err = remote.Open(t.Context(), near, "v1")
	if err == nil || !strings.Contains(err.Error(), `exec: \"packetwalk\"`) || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("a shell's complaint: %v", err)
	}
}

// TestNobodyReads: a conversation ends when the reader stops, and leaves nothing.
func TestNobodyReads(t *testing.T) {
	w := newWorld(t)
	defer func(d time.Duration) { *remote.Writing = d }(*remote.Writing)
	*remote.Writing = 100 * time.Millisecond
	in, far := io.Pipe()
	unread, out := io.Pipe()
	defer unread.Close()
	served := make(chan error, 1)
	go func() { served <- remote.Serve(t.Context(), in, out, w, "v1") }()
	text := `{"id":1,"op":"hello","body":{}}`
	if _, err := far.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err == nil || !strings.Contains(err.Error(), "the reader stopped") {
		t.Errorf("served: %v", err)
	}
	far.Close()
}

// TestEndOfContext: a conversation ends with its context, also in the middle of a wait for questions.
func TestEndOfContext(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	in, far := io.Pipe()
	defer far.Close()
	served := make(chan error, 1)
	go func() { served <- remote.Serve(ctx, in, io.Discard, w, "v1") }()
	cancel()
	if err := <-served; !errors.Is(err, context.Canceled) {
		t.Errorf("served: %v", err)
	}
}

// movedMachine is a machine on which a process has ended since it was looked at, and another one has its number.
type movedMachine struct{ *world }

func (m movedMachine) Look(ctx context.Context) (capture.Origin, map[string]string, error) {
	origin, paths, err := m.world.Look(ctx)
	paths["pod/default/a"] = m.hosts["node/n"].Path()
	return origin, paths, err
}

// TestAnotherProcess: neither state nor packets are those of whoever has the number of the process that was meant.
func TestAnotherProcess(t *testing.T) {
	w := newWorld(t)
	near, far := net.Pipe()
	defer far.Close()
	go func() { _ = remote.Serve(t.Context(), far, far, movedMachine{w}, "v1") }()
	node, err := remote.Open(t.Context(), near, "v1")
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	place := node.Place("pod/default/a")
	if _, err := node.Fetch(t.Context(), "pod/default/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("state: %v", err)
	}
	if _, err := place.Prepare(t.Context(), proof.SendRequest{Packet: to(packet.TCP, "203.0.113.9", 80).Packet}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("sender: %v", err)
	}
	if _, err := place.Watch(t.Context(), proof.WatchRequest{}, make(chan struct{}, 1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("watcher: %v", err)
	}
}

// TestClosedWhileSending: a sender is closed when it has stopped sending, and that is at once.
func TestClosedWhileSending(t *testing.T) {
	w := newWorld(t)
	node, _, served, err := w.talk("v1")
	if err != nil {
		t.Fatal(err)
	}
	w.sh("node/n", "iptables-nft -A INPUT -i veth0 -p tcp --dport 82 -j DROP")
	sender, err := node.Place("pod/default/a").Prepare(t.Context(), proof.SendRequest{Packet: to(packet.TCP, "203.0.113.9", 82).Packet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan error, 1)
	go func() {
		_, err := sender.Send(ctx, ctx)
		sent <- err
	}()
	time.Sleep(50 * time.Millisecond)
	cancel()
	if err := <-sent; !errors.Is(err, context.Canceled) {
		t.Errorf("sent: %v", err)
	}
	begin := time.Now()
	if err := sender.Close(); err != nil || time.Since(begin) > 4*time.Second {
		t.Errorf("closed after %v: %v", time.Since(begin), err)
	}
	node.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
