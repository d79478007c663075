package walk

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// TestPrograms: a packet that a program may change or drop has an unknown fate from there, and one that it cannot change has none of that.
func TestPrograms(t *testing.T) {
	icmp := packet.Packet{Tuple: packet.Tuple{Protocol: packet.ICMP, Destination: syn("", "10.2.0.2:80").Destination, Type: 8}}
	udp := syn("", "10.2.0.2:53")
	udp.Protocol, udp.TCPFlags = packet.UDP, 0
	bound := syn("10.1.0.2:4000", "10.2.0.2:80")
	for name, c := range map[string]struct {
		host   string
		attach snapshot.Program
		packet packet.Packet
		kind   EndKind // of the outcome in which the program does something; "" if it cannot
		back   bool    // to the reply
	}{
		"connect4":                      {host: "client", attach: snapshot.Program{Attach: "connect4"}, packet: syn("", "10.2.0.2:80"), kind: Undecided},
		"connect6 of IPv4":              {host: "client", attach: snapshot.Program{Attach: "connect6"}, packet: syn("", "10.2.0.2:80"), kind: Undecided},
		"connect4 of UDP":               {host: "client", attach: snapshot.Program{Attach: "connect4"}, packet: udp, kind: Undecided},
		"connect4 of ICMP":              {host: "client", attach: snapshot.Program{Attach: "connect4"}, packet: icmp},
		"connect4 of listener":          {host: "server", attach: snapshot.Program{Attach: "connect4"}, packet: syn("", "10.2.0.2:80")},
		"connect4 of router":            {host: "router", attach: snapshot.Program{Attach: "connect4"}, packet: syn("", "10.2.0.2:80")},
		"sendmsg4":                      {host: "client", attach: snapshot.Program{Attach: "sendmsg4"}, packet: udp, kind: Undecided},
		"sendmsg4 of TCP":               {host: "client", attach: snapshot.Program{Attach: "sendmsg4"}, packet: syn("", "10.2.0.2:80")},
		"sendmsg4 of reply":             {host: "server", attach: snapshot.Program{Attach: "sendmsg4"}, packet: udp, kind: Undecided, back: true},
		"sendmsg6 of IPv4":              {host: "client", attach: snapshot.Program{Attach: "sendmsg6"}, packet: udp},
		"bind4":                         {host: "client", attach: snapshot.Program{Attach: "bind4"}, packet: syn("", "10.2.0.2:80")},
		"bind4 of a port":               {host: "client", attach: snapshot.Program{Attach: "bind4"}, packet: bound, kind: Undecided},
		"sock_ops":                      {host: "client", attach: snapshot.Program{Attach: "sock_ops"}, packet: syn("", "10.2.0.2:80"), kind: Undecided},
		"sock_ops of UDP":               {host: "client", attach: snapshot.Program{Attach: "sock_ops"}, packet: udp},
		"sock_create":                   {host: "client", attach: snapshot.Program{Attach: "sock_create"}, packet: icmp, kind: Undecided},
		"egress":                        {host: "client", attach: snapshot.Program{Attach: "egress"}, packet: icmp, kind: Dropped},
		"egress of reply":               {host: "server", attach: snapshot.Program{Attach: "egress"}, packet: udp, kind: Dropped, back: true},
		"egress of router":              {host: "router", attach: snapshot.Program{Attach: "egress"}, packet: icmp},
		"ingress":                       {host: "server", attach: snapshot.Program{Attach: "ingress"}, packet: udp, kind: Dropped},
		"ingress of echo":               {host: "server", attach: snapshot.Program{Attach: "ingress"}, packet: icmp},
		"ingress of reply":              {host: "client", attach: snapshot.Program{Attach: "ingress"}, packet: icmp, kind: Dropped, back: true},
		"sk_lookup":                     {host: "server", attach: snapshot.Program{Attach: "sk_lookup"}, packet: udp, kind: Undecided},
		"sk_lookup of client":           {host: "client", attach: snapshot.Program{Attach: "sk_lookup"}, packet: udp},
		"sk_skb":                        {host: "server", attach: snapshot.Program{Attach: "sk_skb"}, packet: udp, kind: Undecided},
		"sk_skb of TCP":                 {host: "server", attach: snapshot.Program{Attach: "sk_skb"}, packet: syn("", "10.2.0.2:80")},
		"netfilter":                     {host: "router", attach: snapshot.Program{Attach: "netfilter", Hook: "forward"}, packet: icmp, kind: Dropped},
		"netfilter elsewhere":           {host: "router", attach: snapshot.Program{Attach: "netfilter", Hook: "input"}, packet: icmp},
		"netfilter of IPv6":             {host: "router", attach: snapshot.Program{Attach: "netfilter", Hook: "forward", IPv6: true}, packet: icmp},
		"some services":                 {host: "client", attach: snapshot.Program{Attach: "connect4", Some: true}, packet: syn("", "10.2.0.2:80")},
		"LSM at connect":                {host: "client", attach: snapshot.Program{Attach: "lsm_cgroup", Hook: "socket_connect"}, packet: syn("", "10.2.0.2:80"), kind: Undecided},
		"LSM at connect of listener":    {host: "server", attach: snapshot.Program{Attach: "lsm_cgroup", Hook: "socket_connect"}, packet: syn("", "10.2.0.2:80")},
		"LSM at connect of ICMP":        {host: "client", attach: snapshot.Program{Attach: "lsm_mac", Hook: "socket_connect"}, packet: icmp},
		"LSM at sendmsg":                {host: "client", attach: snapshot.Program{Attach: "lsm_mac", Hook: "socket_sendmsg"}, packet: udp, kind: Undecided},
		"LSM at sendmsg of TCP":         {host: "client", attach: snapshot.Program{Attach: "lsm_mac", Hook: "socket_sendmsg"}, packet: syn("", "10.2.0.2:80")},
		"LSM at sendmsg of reply":       {host: "server", attach: snapshot.Program{Attach: "lsm_mac", Hook: "socket_sendmsg"}, packet: udp, kind: Undecided, back: true},
		"LSM at bind":                   {host: "client", attach: snapshot.Program{Attach: "lsm_cgroup", Hook: "socket_bind"}, packet: syn("", "10.2.0.2:80")},
		"LSM at bind of a port":         {host: "client", attach: snapshot.Program{Attach: "lsm_cgroup", Hook: "socket_bind"}, packet: bound, kind: Undecided},
		"LSM at create":                 {host: "client", attach: snapshot.Program{Attach: "lsm_mac", Hook: "socket_create"}, packet: icmp, kind: Undecided},
		"LSM at rcv_skb":                {host: "server", attach: snapshot.Program{Attach: "lsm_cgroup", Hook: "socket_sock_rcv_skb"}, packet: udp, kind: Dropped},
		"LSM at conn_request":           {host: "server", attach: snapshot.Program{Attach: "lsm_mac", Hook: "inet_conn_request"}, packet: syn("", "10.2.0.2:80"), kind: Dropped},
		"LSM at conn_request of UDP":    {host: "server", attach: snapshot.Program{Attach: "lsm_mac", Hook: "inet_conn_request"}, packet: udp},
		"LSM at conn_request of client": {host: "client", attach: snapshot.Program{Attach: "lsm_mac", Hook: "inet_conn_request"}, packet: syn("", "10.2.0.2:80")},
		"LSM at listen":                 {host: "server", attach: snapshot.Program{Attach: "lsm_mac", Hook: "socket_listen"}, packet: syn("", "10.2.0.2:80")},
		"LSM of router":                 {host: "router", attach: snapshot.Program{Attach: "lsm_mac", Hook: "socket_connect"}, packet: syn("", "10.2.0.2:80")},
	} {
		t.Run(name, func(t *testing.T) {
			n, _, _, server := chain(t)
			server.listen(packet.UDP, "0.0.0.0:53")
			c.attach.Name, c.attach.ID = "prog", 7
			n.hosts[c.host].Programs = []snapshot.Program{c.attach}
			r := n.walk(Request{Host: "client", Packet: c.packet})
			if o := r.Outcomes[0]; o.End.Kind != Delivered || o.BackEnd == nil || o.BackEnd.Kind != Delivered {
				t.Errorf("left alone: %s", ends(o))
			}
			if some := c.attach.Some; some != strings.Contains(assumptions(r), "assuming the process is in none of the control groups") {
				t.Errorf("assumed: %s", assumptions(r))
			}
			if c.kind == "" {
				if len(r.Outcomes) != 1 {
					t.Errorf("%d outcomes: %s", len(r.Outcomes), ends(r.Outcomes[1]))
				}
				return
			}
			for i, o := range r.Outcomes[1:] {
				end := &o.End
				if c.back {
					end = o.BackEnd
				}
				if i == len(r.Outcomes)-2 && (end.Kind != c.kind || end.Host != c.host ||
					!strings.Contains(end.Why, "BPF program prog (id 7, "+c.attach.Attach)) {
					t.Errorf("changed: %s", ends(o))
				}
				if o.Probability != nil {
					t.Errorf("probability %s", o.Probability)
				}
			}
			if len(r.Outcomes) == 1 {
				t.Error("one outcome")
			}
		})
	}
}

// TestProgramsShowing: a program that changes what a socket's process is told changes no packet. The packet's fate stays as sure, and what
// the process sees does not.
func TestProgramsShowing(t *testing.T) {
	icmp := packet.Packet{Tuple: packet.Tuple{Protocol: packet.ICMP, Destination: syn("", "10.2.0.2:80").Destination, Type: 8}}
	tcp, udp := syn("", "10.2.0.2:80"), syn("", "10.2.0.2:53")
	udp.Protocol, udp.TCPFlags = packet.UDP, 0
	for name, c := range map[string]struct {
		host        string
		attach      snapshot.Program
		packet      packet.Packet
		there, back string // what may be shown
	}{
		"recvmsg4":               {host: "server", attach: snapshot.Program{Attach: "recvmsg4"}, packet: udp, there: "source"},
		"recvmsg6 of IPv4":       {host: "server", attach: snapshot.Program{Attach: "recvmsg6"}, packet: udp, there: "source"},
		"recvmsg4 of TCP":        {host: "server", attach: snapshot.Program{Attach: "recvmsg4"}, packet: tcp},
		"recvmsg4 of echo":       {host: "server", attach: snapshot.Program{Attach: "recvmsg4"}, packet: icmp},
		"recvmsg4 of reply":      {host: "client", attach: snapshot.Program{Attach: "recvmsg4"}, packet: udp, back: "source"},
		"recvmsg4 of router":     {host: "router", attach: snapshot.Program{Attach: "recvmsg4"}, packet: udp},
		"getpeername4":           {host: "server", attach: snapshot.Program{Attach: "getpeername4"}, packet: tcp, there: "source"},
		"getpeername6 of IPv4":   {host: "server", attach: snapshot.Program{Attach: "getpeername6"}, packet: tcp, there: "source"},
		"getpeername4 of reply":  {host: "client", attach: snapshot.Program{Attach: "getpeername4"}, packet: tcp, back: "source"},
		"getpeername4 of others": {host: "server", attach: snapshot.Program{Attach: "getpeername4", Some: true}, packet: tcp},
		"getsockname4":           {host: "server", attach: snapshot.Program{Attach: "getsockname4"}, packet: tcp, there: "destination"},
		"getsockname4 of reply":  {host: "client", attach: snapshot.Program{Attach: "getsockname4"}, packet: tcp, back: "destination"},
	} {
		t.Run(name, func(t *testing.T) {
			n, _, _, server := chain(t)
			server.listen(packet.UDP, "0.0.0.0:53")
			c.attach.Name, c.attach.ID = "prog", 7
			n.hosts[c.host].Programs = []snapshot.Program{c.attach}
			r := n.walk(Request{Host: "client", Packet: c.packet})
			o := r.Outcomes[0]
			if len(r.Outcomes) != 1 || o.End.Kind != Delivered || o.BackEnd == nil || o.BackEnd.Kind != Delivered || o.Probability == nil {
				t.Fatalf("%d outcomes: %s", len(r.Outcomes), ends(o))
			}
			for end, shown := range map[*End]string{&o.End: c.there, o.BackEnd: c.back} {
				want := ""
				if shown != "" {
					want = "BPF program prog (id 7, " + c.attach.Attach + ") may show the program another " + shown
				}
				if end.Disguise != want {
					t.Errorf("on %s: %q, want %q", end.Host, end.Disguise, want)
				}
			}
			if c.attach.Some != strings.Contains(assumptions(r), "assuming the process is in none of the control groups") {
				t.Errorf("assumed: %s", assumptions(r))
			}
		})
	}
}

// TestProgramsUnread: a program may be where none could be read. What was taken before programs were read says that it does not have them.
func TestProgramsUnread(t *testing.T) {
	n, client, _, _ := chain(t)
	client.Unread = map[snapshot.Part]string{snapshot.SocketPrograms: "bpf: operation not permitted"}
	r := n.tcp("client", "10.2.0.2:80")
	changed := r.Outcomes[len(r.Outcomes)-1].End
	if len(r.Outcomes) != 1 || changed.Kind != Undecided || !strings.Contains(changed.Why, "operation not permitted") {
		t.Errorf("not read: %s", ends(r.Outcomes[len(r.Outcomes)-1]))
	}
	if why := Disguise(client.Host, &packet.Tuple{Protocol: packet.TCP}); !strings.Contains(why, "operation not permitted") {
		t.Errorf("a disguise: %q", why)
	}
	client.Unread, client.Missing = nil, map[snapshot.Part]string{snapshot.SocketPrograms: "not in the capture"}
	r = n.tcp("client", "10.2.0.2:80")
	if len(r.Outcomes) != 1 || !strings.Contains(assumptions(r), "programs at sockets unknown; assuming there are none") ||
		len(r.Outcomes[0].Unshown) == 0 {
		t.Errorf("not in the capture: %s; %s", ends(r.Outcomes[0]), assumptions(r))
	}
}

// TestShortcut: a program of sk_msg changes no first packet, but data may go past the walk's way.
func TestShortcut(t *testing.T) {
	n, client, _, _ := chain(t)
	client.Programs = []snapshot.Program{{Attach: "sk_msg", Name: "fast", ID: 9}}
	r := n.tcp("client", "10.2.0.2:80")
	if len(r.Outcomes) != 1 || !strings.Contains(assumptions(r), "once connected, BPF program fast (id 9, sk_msg) may pass data") {
		t.Errorf("%d outcomes; assumed: %s", len(r.Outcomes), assumptions(r))
	}
}

// TestProgramAtUnknownHook: a program of LSM whose hook could not be read may refuse to send, and to receive.
func TestProgramAtUnknownHook(t *testing.T) {
	for _, host := range []string{"client", "server", "router"} {
		n, _, _, _ := chain(t)
		n.hosts[host].Programs = []snapshot.Program{{Attach: "lsm_mac", Name: "prog", ID: 7}}
		r := n.walk(Request{Host: "client", Packet: syn("", "10.2.0.2:80"), OneWay: true})
		if o := r.Outcomes[len(r.Outcomes)-1]; strings.Contains(o.End.Why, "BPF program prog (id 7, lsm_mac)") != (host != "router") {
			t.Errorf("%s: %s", host, ends(o))
		}
	}
}
