package walk

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// Programs of others at sockets may change a packet before it exists, or drop it. What they do is unknown: the walk goes on as if they did
// nothing, and ends where they do something.

// programsSending asks about a packet that a socket of the host is about to send. bound says that its port was asked for.
func (t *transit) programsSending(bound bool) *End {
	p := &t.p
	if p.KernelMade {
		return nil
	}
	reply := t.inReplyTo != nil
	t.assumeNoShortcut()
	tcp, udp := p.Protocol == packet.TCP, p.Protocol == packet.UDP || p.Protocol == packet.UDPLite
	return t.intervene(Undecided, "change the packet before it is sent, or refuse it", func(pr *snapshot.Program) bool {
		switch pr.Attach {
		case "sock_create": // may give the socket a mark or a link
			return true
		case "bind4", "bind6":
			return !reply && bound && (pr.Attach == "bind6" || !p.IsIPv6())
		case "connect4":
			return !reply && (tcp || udp) && !p.IsIPv6()
		case "connect6": // also of a socket that connects to an IPv4-mapped address
			return !reply && (tcp || udp)
		case "sendmsg4": // also of a socket of IPv6 that sends to an IPv4-mapped address (udpv6_sendmsg)
			return udp && !p.IsIPv6()
		case "sendmsg6":
			return udp && p.IsIPv6()
		case "sock_ops":
			return tcp
		}
		switch atLSM(pr) {
		case unknownHook, "socket_create", "socket_post_create", "sk_alloc_security":
			return true
		case "socket_bind":
			return !reply && bound
		case "socket_connect":
			return !reply && (tcp || udp)
		case "socket_sendmsg": // a TCP connection begins without it
			return !tcp
		}
		return false
	})
}

// unknownHook stands for a hook of LSM that could not be read. It may be any.
const unknownHook = "unknown"

// atLSM returns the hook of a program of LSM, "" for another program.
func atLSM(pr *snapshot.Program) string {
	if pr.Attach != "lsm_cgroup" && pr.Attach != "lsm_mac" {
		return ""
	}
	return cmp.Or(pr.Hook, unknownHook)
}

// assumeNoShortcut says that the data of a connection may go another way than its first packet: programs of sk_msg pass it from socket to
// socket.
func (t *transit) assumeNoShortcut() {
	for i := range t.m.Programs {
		if pr := &t.m.Programs[i]; pr.Attach == "sk_msg" && t.p.Protocol == packet.TCP {
			t.m.assumeUntraced(fmt.Sprintf("once connected, %s may pass data to another socket, past the network; assuming it does not", pr))
		}
	}
}

// programsLeaving asks about a packet of the host's own, behind all hooks (ip_finish_output).
func (t *transit) programsLeaving() *End {
	return t.intervene(Dropped, "drop the packet", attachedAt("egress"))
}

// programsChoosing asks who takes a packet that begins a connection (inet_lookup_run_sk_lookup), and about datagrams for sockets in maps.
func (t *transit) programsChoosing() *End {
	return t.intervene(Undecided, "choose another socket, or none", func(pr *snapshot.Program) bool {
		switch pr.Attach {
		case "sk_lookup":
			return t.p.Protocol == packet.TCP || t.p.Protocol == packet.UDP
		case "sk_skb": // of TCP it gets the data of connections only
			return t.p.Protocol == packet.UDP
		}
		return false
	})
}

// programsReceiving asks about a packet that a socket is about to take (sk_filter_trim_cap).
func (t *transit) programsReceiving() *End {
	return t.intervene(Dropped, "drop the packet", func(pr *snapshot.Program) bool {
		switch atLSM(pr) {
		case unknownHook, "socket_sock_rcv_skb":
			return true
		case "inet_conn_request":
			return t.p.Protocol == packet.TCP && t.inReplyTo == nil
		}
		return pr.Attach == "ingress"
	})
}

// programsAtHook asks about a packet at a hook of netfilter.
func (t *transit) programsAtHook(f netfilter.Family, h netfilter.Hook) *End {
	return t.intervene(Dropped, "drop the packet", func(pr *snapshot.Program) bool {
		return pr.Attach == "netfilter" && f != netfilter.Bridge && (pr.Hook == "" || pr.Hook == h.String() && pr.IPv6 == (f == netfilter.IPv6))
	})
}

// disguise returns which programs may show the process that takes the packet another source or destination than the packet's; "" for none.
func (t *transit) disguise() string {
	return disguises(&t.p.Tuple, t.programs)
}

// Disguise returns which of a host's programs may show a process there another source or destination than a packet's; "" for none. Programs
// that could not be read may.
func Disguise(h *snapshot.Host, p *packet.Tuple) string {
	if why := h.Unread[snapshot.SocketPrograms]; why != "" {
		return fmt.Sprintf("its %s could not be read: %s", snapshot.SocketPrograms, why)
	}
	return disguises(p, func(gets func(*snapshot.Program) bool) []snapshot.Program {
		all, _ := programs(h, gets)
		return all
	})
}

func disguises(p *packet.Tuple, programs func(gets func(*snapshot.Program) bool) []snapshot.Program) string {
	var all []string
	for _, what := range [...]string{"source", "destination"} {
		about := Intervention{what: "show the program another " + what}
		about.Programs = programs(func(pr *snapshot.Program) bool { return disguised(pr, p) == what })
		if len(about.Programs) > 0 {
			all = append(all, about.String())
		}
	}
	return strings.Join(all, "; ")
}

// disguised returns what of a packet a program may change where the socket's process is told of it; "" for nothing. A socket of IPv6 has
// the programs of IPv6 also for packets of IPv4 (udpv6_recvmsg, inet6_getname).
func disguised(pr *snapshot.Program, p *packet.Tuple) string {
	call, ipv6 := strings.CutSuffix(pr.Attach, "6")
	if !ipv6 && p.Destination.Is4() {
		call = strings.TrimSuffix(call, "4")
	}
	switch {
	case call == "recvmsg" && (p.Protocol == packet.UDP || p.Protocol == packet.UDPLite), call == "getpeername" && p.Protocol.HasPorts():
		return "source"
	case call == "getsockname" && p.Protocol.HasPorts():
		return "destination"
	}
	return ""
}

func attachedAt(attach string) func(*snapshot.Program) bool {
	return func(pr *snapshot.Program) bool { return pr.Attach == attach }
}

// Intervention asks whether programs do something to a packet.
type Intervention struct {
	Programs []snapshot.Program
	what     string // "drop the packet"
}

// OfGroups returns the programs of control groups below the root. Only processes in these groups meet them.
func (i Intervention) OfGroups() []snapshot.Program {
	return slices.DeleteFunc(slices.Clone(i.Programs), func(p snapshot.Program) bool { return p.Group == "" || p.Group == "/" })
}

// String returns "BPF program sock4 (id 7, connect4, control group /) may drop the packet".
func (i Intervention) String() string {
	names := make([]string, len(i.Programs))
	for k := range i.Programs {
		names[k] = i.Programs[k].String()
	}
	return strings.Join(names, " and ") + " may " + i.what
}

// intervene decides whether one of the programs that get the packet does something to it. It returns the packet's end then.
func (t *transit) intervene(kind EndKind, what string, gets func(*snapshot.Program) bool) *End {
	if end := t.needs(snapshot.SocketPrograms); end != nil {
		return end
	}
	if !t.m.isKnown(snapshot.SocketPrograms) {
		t.m.assumeMissing(snapshot.SocketPrograms, "programs at sockets unknown; assuming there are none")
	}
	about := Intervention{Programs: t.programs(gets), what: what}
	if len(about.Programs) == 0 {
		return nil
	}
	if t.choose(netfilter.Unknown, about, []netfilter.Option{{Label: "it does not"}, {Label: "it does"}}) == 0 {
		return nil
	}
	return t.end(kind, about.String())
}

// programs returns those of the host's programs that get something. It assumes that the process is in no group that only some processes of
// the namespace are in.
func (t *transit) programs(gets func(*snapshot.Program) bool) []snapshot.Program {
	all, elsewhere := programs(t.m.Host, gets)
	if len(elsewhere) > 0 {
		t.m.assumeUntraced("assuming the process is in none of the control groups that have BPF programs: " + snapshot.List(elsewhere))
	}
	return all
}

// programs returns those of a host's programs that get something, and the groups of those that get it from some of its processes only.
func programs(h *snapshot.Host, gets func(*snapshot.Program) bool) (all []snapshot.Program, elsewhere []string) {
	for i := range h.Programs {
		switch p := &h.Programs[i]; {
		case !gets(p):
		case p.Some:
			elsewhere = append(elsewhere, p.Group)
		default:
			all = append(all, *p)
		}
	}
	return all, elsewhere
}
