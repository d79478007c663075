package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"packetwalk.dev/internal/answer/proof/local"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/testing/bpflock"
)

// builtWorld is a world that runs in the kernel.
type builtWorld struct {
	dir     string
	spaces  map[string]*netns.Namespace
	dumper  dump.Dumper
	unlock  func() // lets other tests load BPF programs that may be at any socket
	sockets []interface{ Close() error }
	wg      sync.WaitGroup

	tamper func(text string) string // makes the model read something else than what is so; nil for tests of the model itself

	remember map[string]bool // hosts whose rules hold what packets put there

	mu      sync.Mutex
	dumps   map[string]*capture.Raw // the last of each host
	answers []string                // what the programs for UDP have read and sent, and when
	sent    map[string]bool         // their answers' payloads
}

// worldError says that a world's own text is wrong: the kernel refuses to be set up like this.
type worldError struct {
	what string // "wire", "carrier", or the name of a host's file
	err  error
}

func (e *worldError) Error() string {
	return "the world cannot be made: " + e.what + ": " + e.err.Error()
}

func (e *worldError) Unwrap() error { return e.err }

// build makes the world in namespaces that are mounted in a new directory below dir.
func build(ctx context.Context, dir string, w *World) (b *builtWorld, err error) {
	b = &builtWorld{spaces: map[string]*netns.Namespace{}, remember: map[string]bool{}, dumps: map[string]*capture.Raw{}, sent: map[string]bool{}}
	if b.unlock, err = bpflock.Walk(); err != nil {
		return nil, err
	}
	if b.dir, err = os.MkdirTemp(dir, "world"); err != nil {
		return nil, errors.Join(err, b.close())
	}
	for i, h := range w.Hosts {
		ns, err := netns.Create(filepath.Join(b.dir, fmt.Sprint(i)))
		if err != nil {
			return nil, errors.Join(err, b.close())
		}
		b.spaces[h.Name] = ns
	}
	if err := b.fill(ctx, w); err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.dumper.Hosts = map[string]string{}
	for name, ns := range b.spaces {
		b.dumper.Hosts[name] = ns.Path()
	}
	return b, nil
}

func (b *builtWorld) fill(ctx context.Context, w *World) error {
	for _, ns := range b.spaces {
		if err := ns.SetSysctls(quiet...); err != nil {
			return err
		}
	}
	for i, line := range w.Wires {
		if line == NoWire {
			continue
		}
		if err := b.wire(i, line); err != nil {
			return err
		}
	}
	var g errgroup.Group
	for _, h := range w.Hosts {
		g.Go(func() error { return b.apply(ctx, h) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, ns := range b.spaces {
		if err := hastyNeighbours(ns); err != nil {
			return err
		}
	}
	// A link loses its carrier after all settings are made: the shares of a multipath route's ways do not follow a change of
	// ignore_routes_with_linkdown (fib_rebalance, rt6_multipath_rebalance).
	for _, h := range w.Hosts {
		for _, link := range *h.lines("down") {
			if err := restore(b.spaces[h.Name], "ip", "link set "+link+" down\n"); err != nil {
				return &worldError{"down", fmt.Errorf("%s: %w", h.Name, err)}
			}
		}
	}
	return b.settled(ctx, w)
}

// hastyNeighbours makes questions for link-layer addresses end soon: a packet that comes while one is open waits for the next attempt.
// Answers are not asked for again: a busy machine may give them too late.
func hastyNeighbours(ns *netns.Namespace) error {
	h, err := ns.Handle()
	if err != nil {
		return err
	}
	links, err := h.LinkList()
	if err != nil {
		return err
	}
	var all []netns.Sysctl
	for _, l := range links {
		for _, family := range []string{"ipv4", "ipv6"} {
			entry := "net/" + family + "/neigh/" + l.Attrs().Name
			all = append(all, netns.Sysctl{Key: entry + "/retrans_time_ms", Value: "20"}, netns.Sysctl{Key: entry + "/proxy_delay", Value: "0"},
				netns.Sysctl{Key: entry + "/delay_first_probe_time", Value: "300"})
		}
	}
	return ns.SetSysctls(all...)
}

// quiet keeps a namespace from sending packets and waiting for answers of its own accord.
var quiet = []netns.Sysctl{
	{Key: "net/ipv6/conf/default/accept_dad", Value: "0"}, {Key: "net/ipv6/conf/all/accept_dad", Value: "0"},
	{Key: "net/ipv6/conf/default/router_solicitations", Value: "0"}, {Key: "net/ipv6/conf/default/accept_ra", Value: "0"},
	{Key: "net/ipv6/conf/default/addr_gen_mode", Value: "1"},
	// Reports of multicast groups are repeated within a second by default, and pass rules that count: numgen inc, statistic nth, limits.
	{Key: "net/ipv6/conf/default/mldv1_unsolicited_report_interval", Value: "3600000"},
	{Key: "net/ipv6/conf/default/mldv2_unsolicited_report_interval", Value: "3600000"},
	// Errors are sent as often as there is reason to: how many went before is nothing that a snapshot can show.
	{Key: "net/ipv4/icmp_ratemask", Value: "0"}, {Key: "net/ipv6/icmp/ratelimit", Value: "0"},
	// A busy machine is slow: no flow ends between a packet and the look at it. One of SCTP is CLOSED from its INIT on, for 10 s by default,
	// which another INIT does not renew (nf_conntrack_sctp_packet).
	{Key: "net/netfilter/nf_conntrack_sctp_timeout_cookie_wait", Value: "300"}, {Key: "net/netfilter/nf_conntrack_udp_timeout", Value: "300"},
	{Key: "net/netfilter/nf_conntrack_icmp_timeout", Value: "300"}, {Key: "net/netfilter/nf_conntrack_icmpv6_timeout", Value: "300"},
	{Key: "net/netfilter/nf_conntrack_sctp_timeout_closed", Value: "300"}, {Key: "net/netfilter/nf_conntrack_tcp_timeout_close", Value: "300"},
	{Key: "net/netfilter/nf_conntrack_sctp_timeout_cookie_echoed", Value: "300"},
	{Key: "net/netfilter/nf_conntrack_tcp_timeout_syn_sent", Value: "300"}, {Key: "net/netfilter/nf_conntrack_tcp_timeout_syn_recv", Value: "300"},
	{Key: "net/netfilter/nf_conntrack_tcp_timeout_last_ack", Value: "300"}, {Key: "net/netfilter/nf_conntrack_tcp_timeout_fin_wait", Value: "300"},
	{Key: "net/netfilter/nf_conntrack_tcp_timeout_time_wait", Value: "300"}, {Key: "net/netfilter/nf_conntrack_tcp_timeout_close_wait", Value: "300"},
	// A host that waits in vain for the other fragments of a packet tells the sender after 30 s (ip_expire), and asks for its neighbour.
	{Key: "net/ipv4/ipfrag_time", Value: "3600"}, {Key: "net/ipv6/ip6frag_time", Value: "3600"},
	{Key: "net/netfilter/nf_conntrack_frag6_timeout", Value: "3600"},
	// A SYN-ACK that no acknowledgement follows within a second is sent again, and what a repeated one meets is not what the first one met.
	{Key: "net/ipv4/tcp_synack_retries", Value: "0"},
	// Redirects pass the rules, and change routes that no snapshot shows; how many were sent before decides about the next.
	{Key: "net/ipv4/conf/default/send_redirects", Value: "0"}, {Key: "net/ipv4/conf/all/send_redirects", Value: "0"},
}

// wire makes a veth pair. Its addresses are those of its place in the list.
func (b *builtWorld) wire(i int, line string) error {
	e, err := wireEnds(line)
	if err != nil {
		return &worldError{"wire", err}
	}
	end := func(n int) netns.LinkEnd {
		return netns.LinkEnd{Namespace: b.spaces[e[2*n]], Name: e[2*n+1], MAC: fmt.Sprintf("02:00:00:00:%02x:%02x", i+1, n+1)}
	}
	if err := netns.EnsureVeth(end(0), end(1), 1500); err != nil {
		return &worldError{"wire", err}
	}
	return nil
}

func (b *builtWorld) apply(ctx context.Context, h *Host) error {
	ns := b.spaces[h.Name]
	for _, f := range files {
		lines := *h.lines(f)
		if len(lines) == 0 {
			continue
		}
		var err error
		switch f {
		case "sysctl":
			err = ns.SetSysctls(sysctls(lines)...)
		case "listen":
			err = b.listen(ctx, ns, lines)
		case "services":
			b.remember[h.Name] = true
			err = writeServices(ctx, ns, lines)
		case "down": // later
		case "nfacct":
			err = ns.Do(func() error { return addAccounts(lines) })
		default:
			err = restore(ns, f, strings.Join(lines, "\n")+"\n")
		}
		if err != nil {
			return &worldError{f, fmt.Errorf("%s: %w", h.Name, err)}
		}
	}
	return nil
}

func sysctls(lines []string) []netns.Sysctl {
	var all []netns.Sysctl
	for _, l := range lines {
		key, value, _ := strings.Cut(l, " ")
		all = append(all, netns.Sysctl{Key: key, Value: value})
	}
	return all
}

// restorers are the programs that read the files.
var restorers = map[string][]string{
	"ip": {"ip", "-force", "-batch", "-"}, "fdb": {"bridge", "-batch", "-"}, "ipset": {"ipset", "restore"},
	"iptables": {"iptables-nft-restore"}, "iptables-legacy": {"iptables-legacy-restore", "-w", "10"},
	"ip6tables": {"ip6tables-nft-restore"}, "ip6tables-legacy": {"ip6tables-legacy-restore", "-w", "10"},
	"nft": {"nft", "-f", "-"}, "ebtables": {"ebtables-nft-restore"},
}

func restore(ns *netns.Namespace, file, text string) error {
	args := restorers[file]
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(text)
	// No other process writes this namespace's tables. So restore does not need the machine's lock, which other processes hold for seconds.
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE=/dev/null")
	var words strings.Builder
	cmd.Stdout, cmd.Stderr = &words, &words
	err := ns.Do(cmd.Run)
	var exit *exec.ExitError
	if file == "ip" && errors.As(err, &exit) {
		return nil // -force: what fails is left out
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, strings.TrimSpace(words.String()))
	}
	return nil
}

// listen opens sockets that answer: TCP by accepting, UDP by sending back the complement of what came.
func (b *builtWorld) listen(ctx context.Context, ns *netns.Namespace, lines []string) error {
	for _, l := range lines {
		network, address, _ := strings.Cut(l, " ")
		if network == "udp" {
			c, err := ns.ListenPacket(ctx, network, address)
			if err != nil {
				return err
			}
			b.keep(c)
			b.wg.Go(func() { b.echo(c) })
			continue
		}
		s, err := ns.Listen(ctx, network, address)
		if err != nil {
			return err
		}
		b.keep(s)
		b.wg.Go(func() { b.accept(s) })
	}
	return nil
}

func (b *builtWorld) keep(c interface{ Close() error }) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sockets = append(b.sockets, c)
}

func (b *builtWorld) echo(c net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		read := time.Now()
		if b.isAnswer(buf[:n]) {
			continue // that rules lead to another program: they would answer each other for ever
		}
		for i := range buf[:n] {
			buf[i] ^= 0xff // an answer is told from a request by its content
		}
		if err == nil {
			b.mu.Lock()
			b.sent[string(buf[:n])] = true
			b.mu.Unlock()
			_, err = c.WriteTo(buf[:n], from)
		}
		b.mu.Lock()
		b.answers = append(b.answers, fmt.Sprintf("%s: read %s from %v, sent: %v", c.LocalAddr(), read.Format(time.StampMilli), from, err))
		b.mu.Unlock()
	}
}

// isAnswer reports whether a program of this world has sent the payload.
func (b *builtWorld) isAnswer(payload []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sent[string(payload)]
}

// accept keeps connections open to the end of the world, so that conntrack keeps them, too.
func (b *builtWorld) accept(s net.Listener) {
	for {
		c, err := s.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			b.keep(c)
		}
	}
}

// settled waits until the kernel has noticed whether both ends of every wire are up, and takes packets for all its addresses: an IPv6
// address has its local route when a worker of the kernel has come to it (addrconf_dad_work), though nothing looks for its duplicates.
func (b *builtWorld) settled(ctx context.Context, w *World) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cut, err := b.cutEnds(w)
	if err != nil {
		return err
	}
	for name, ns := range b.spaces {
		for {
			missing, err := unsettled(ns, cut[name])
			if err != nil {
				return err
			}
			if missing == "" {
				break
			}
			select {
			case <-ctx.Done():
				return &worldError{"carrier", fmt.Errorf("%s: %s: %w", name, missing, ctx.Err())}
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}

// cutEnds returns the ends of wires that have no carrier, because the other end is down, by host.
func (b *builtWorld) cutEnds(w *World) (map[string][]string, error) {
	cut := map[string][]string{}
	for _, line := range w.Wires {
		if line == NoWire {
			continue
		}
		e, err := wireEnds(line)
		if err != nil {
			return nil, err
		}
		for _, end := range [][4]string{e, {e[2], e[3], e[0], e[1]}} {
			h, err := b.spaces[end[0]].Handle()
			if err != nil {
				return nil, err
			}
			l, err := h.LinkByName(end[1])
			if err != nil {
				return nil, err
			}
			if l.Attrs().Flags&net.FlagUp == 0 {
				cut[end[2]] = append(cut[end[2]], end[3])
			}
		}
	}
	return cut, nil
}

// unsettled tells what a namespace does not have yet, where some links have no carrier; "" for nothing.
func unsettled(ns *netns.Namespace, cut []string) (string, error) {
	h, err := ns.Handle()
	if err != nil {
		return "", err
	}
	links, err := h.LinkList()
	if err != nil {
		return "", err
	}
	local := map[string]bool{}
	routes, err := h.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return "", err
	}
	for _, r := range routes {
		if r.Dst != nil {
			local[r.Dst.IP.String()] = true
		}
	}
	for _, l := range links {
		a := l.Attrs()
		carrier, running := a.RawFlags&unix.IFF_LOWER_UP != 0, a.RawFlags&unix.IFF_RUNNING != 0
		switch {
		case a.Flags&net.FlagUp == 0:
			continue
		case carrier != running:
			return "the kernel has not noticed the carrier of " + a.Name, nil // linkwatch_do_dev
		case l.Type() == "veth" && carrier == slices.Contains(cut, a.Name):
			return "the carrier of " + a.Name + " is not that of its wire", nil
		}
		addresses, err := h.AddrList(l, netlink.FAMILY_V6)
		if err != nil {
			return "", err
		}
		for _, at := range addresses {
			if !local[at.IP.String()] {
				return "no local route for " + at.IP.String(), nil
			}
		}
	}
	return "", nil
}

// close takes everything away.
func (b *builtWorld) close() error {
	defer b.unlock()
	b.mu.Lock()
	sockets := b.sockets
	b.mu.Unlock()
	for _, s := range sockets {
		_ = s.Close()
	}
	b.wg.Wait()
	b.mu.Lock()
	for _, s := range b.sockets[len(sockets):] {
		_ = s.Close()
	}
	b.mu.Unlock()
	var errs []error
	for _, ns := range b.spaces {
		errs = append(errs, ns.Remove())
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}

func (b *builtWorld) place(host string) (proof.Place, error) {
	if ns, ok := b.spaces[host]; ok {
		return local.Place(ns), nil
	}
	return nil, fmt.Errorf("host %s: %w", host, fs.ErrNotExist)
}

// volatile are the parts of a host's state that packets change. Where service proxies remember clients, rules are another.
var volatile = []snapshot.Part{snapshot.Neighbours, snapshot.FDB, snapshot.Flows, snapshot.RecentLists}

// source returns a snapshot of the world as it is now. Of a host that was dumped before, it dumps only what packets change.
func (b *builtWorld) source(ctx context.Context) snapshot.Source {
	origin := capture.Origin{Hosts: map[string]capture.NetNS{}, Fetch: func(name string) (*capture.Raw, error) { return b.dump(ctx, name) }}
	for name, ns := range b.spaces {
		origin.Hosts[name] = capture.NetNS{Inode: ns.Inode()}
	}
	return capture.NewSource(origin)
}

func (b *builtWorld) dump(ctx context.Context, name string) (*capture.Raw, error) {
	b.mu.Lock()
	before := b.dumps[name]
	b.mu.Unlock()
	var parts []snapshot.Part
	if before != nil {
		parts = volatile
		if b.remember[name] {
			parts = append(slices.Clone(volatile), snapshot.NFT)
		}
	}
	raw, err := b.dumper.Parts(ctx, name, b.spaces[name], parts...)
	if err != nil {
		return nil, err
	}
	if before != nil {
		for file, out := range before.Outputs {
			if _, ok := raw.Outputs[file]; !ok {
				raw.Outputs[file] = out
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dumps[name] = raw
	return b.tampered(raw), nil
}

// tampered returns a dump as a test wants the model to have it.
func (b *builtWorld) tampered(raw *capture.Raw) *capture.Raw {
	if b.tamper == nil {
		return raw
	}
	wrong := *raw
	wrong.Outputs = maps.Clone(raw.Outputs)
	for file, out := range wrong.Outputs {
		out.Data = []byte(b.tamper(string(out.Data)))
		wrong.Outputs[file] = out
	}
	return &wrong
}
