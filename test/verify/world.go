package verify

import (
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/model/packet"
)

// World is a few network namespaces, the wires between them and the packets that are sent one after the other. Its text is a txtar archive:
//
//	-- wires --       lines "HOST LINK HOST LINK": a veth pair
//	-- packets --     lines as parsePacket reads them
//	-- HOST/FILE --   what HOST is made with: see files
type World struct {
	Comment string
	Wires   []string
	Packets []string
	Hosts   []*Host
}

// Host is one namespace: the lines of its files, by their names.
type Host struct {
	Name  string
	Files map[string]*[]string
}

// NoWire stands in the place of a wire that was taken away: the others keep their link-layer addresses, which come of their places.
const NoWire = "-"

// files are a host's, in the order in which they are applied. Every one holds a command, a setting or a rule a line.
var files = []string{
	"ip",               // input of "ip -force -batch": links, addresses, routes, rules, neighbours. What fails is left out
	"fdb",              // input of "bridge -batch": entries of forwarding databases
	"sysctl",           // "net/ipv4/ip_forward 1"
	"ipset",            // of ipset restore
	"nfacct",           // "NAME": an object that counts
	"iptables-legacy",  // of iptables-legacy-restore
	"ip6tables-legacy", // of ip6tables-legacy-restore
	"iptables",         // of iptables-restore
	"ip6tables",        // of ip6tables-restore
	"nft",              // of nft -f
	"services",         // "NAME tcp 10.0.0.1:80 node=30001 affinity=60 local=10.1.0.1:8080": the table of our nftables backend
	"ebtables",         // of ebtables-restore
	"listen",           // "tcp 10.0.0.1:80"
	"down",             // "eth0": a link that is taken down when all hosts are made
}

// Host finds a host by its name, or makes it.
func (w *World) Host(name string) *Host {
	for _, h := range w.Hosts {
		if h.Name == name {
			return h
		}
	}
	h := &Host{Name: name, Files: map[string]*[]string{}}
	w.Hosts = append(w.Hosts, h)
	return h
}

// Add adds a line to a file.
func (h *Host) Add(file, format string, args ...any) {
	lines := h.lines(file)
	*lines = append(*lines, fmt.Sprintf(format, args...))
}

// lines returns the lines of a file, to read and to change.
func (h *Host) lines(file string) *[]string {
	if h.Files[file] == nil {
		h.Files[file] = &[]string{}
	}
	return h.Files[file]
}

// Text returns the world as a txtar archive.
func (w *World) Text() []byte {
	a := &txtar.Archive{Comment: []byte(w.Comment)}
	add := func(name string, lines []string) {
		if len(lines) > 0 {
			a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(strings.Join(lines, "\n") + "\n")})
		}
	}
	add("packets", w.Packets)
	add("wires", w.Wires)
	for _, h := range w.Hosts {
		for _, f := range files {
			add(h.Name+"/"+f, *h.lines(f))
		}
	}
	return txtar.Format(a)
}

// ParseWorld reads what Text wrote.
func ParseWorld(text []byte) (*World, error) {
	a := txtar.Parse(text)
	w := &World{Comment: string(a.Comment)}
	for _, f := range a.Files {
		lines := strings.Split(strings.TrimRight(string(f.Data), "\n"), "\n")
		switch host, file := path.Split(f.Name); {
		case f.Name == "wires":
			w.Wires = lines
		case f.Name == "packets":
			w.Packets = lines
		case host == "" || !isFile(file):
			return nil, fmt.Errorf("file %s: want wires, packets or HOST/FILE with one of %v", f.Name, files)
		default:
			*w.Host(strings.TrimSuffix(host, "/")).lines(file) = lines
		}
	}
	for _, l := range w.Wires {
		if e, err := wireEnds(l); err == nil {
			w.Host(e[0])
			w.Host(e[2])
		}
	}
	return w, nil
}

func isFile(name string) bool {
	for _, f := range files {
		if f == name {
			return true
		}
	}
	return false
}

// Clone returns a deep copy.
func (w *World) Clone() *World {
	c := &World{Comment: w.Comment, Wires: clone(w.Wires), Packets: clone(w.Packets)}
	for _, h := range w.Hosts {
		n := c.Host(h.Name)
		for f, lines := range h.Files {
			*n.lines(f) = clone(*lines)
		}
	}
	return c
}

func clone(lines []string) []string { return append([]string(nil), lines...) }

// wireEnds splits "HOST LINK HOST LINK".
func wireEnds(line string) ([4]string, error) {
	f := strings.Fields(line)
	if len(f) != 4 {
		return [4]string{}, fmt.Errorf("wire %q: want HOST LINK HOST LINK", line)
	}
	return [4]string(f), nil
}

// parsePacket reads "HOST PROTOCOL DESTINATION [from ADDRESS[:PORT]] [mark N] [ttl N] [tos N] [in LINK] [flags N] [more 1]". The
// destination is ADDRESS:PORT, of ICMP an address alone. PROTOCOL is tcp, udp, sctp or icmp, which is ICMPv6 towards an IPv6 address. With
// a link the packet comes in by it, sent by the far end of its wire without a socket, as SCTP has to.
func parsePacket(line string) (host string, p packet.Packet, err error) {
	f := strings.Fields(line)
	if len(f) < 3 || len(f)%2 != 1 {
		return "", p, fmt.Errorf("packet %q: want HOST PROTOCOL DESTINATION and pairs of a word and a value", line)
	}
	if p.Destination, p.DestinationPort, err = parseEnd(f[2]); err != nil {
		return "", p, fmt.Errorf("packet %q: %w", line, err)
	}
	switch f[1] {
	case "tcp":
		p.Protocol = packet.TCP
	case "udp":
		p.Protocol = packet.UDP
	case "sctp":
		p.Protocol = packet.SCTP
	case "icmp":
		p.Protocol = packet.ICMP
		if p.Destination.Is6() {
			p.Protocol = packet.ICMPv6
		}
	default:
		return "", p, fmt.Errorf("packet %q: protocol %s", line, f[1])
	}
	for i := 3; i < len(f); i += 2 {
		if err := option(&p, f[i], f[i+1]); err != nil {
			return "", p, fmt.Errorf("packet %q: %w", line, err)
		}
	}
	return f[0], p, nil
}

func option(p *packet.Packet, word, value string) (err error) {
	switch word {
	case "from":
		p.Source, p.SourcePort, err = parseEnd(value)
		return err
	case "in":
		p.In = value
		return nil
	}
	n, err := strconv.ParseUint(value, 0, 32)
	switch word {
	case "mark":
		p.Mark = uint32(n)
	case "ttl":
		p.TTL = uint8(n)
	case "tos":
		p.TOS = uint8(n)
	case "more": // the first fragment of a packet
		p.More = n != 0
	case "flags": // of TCP, as bits (RFC 9293)
		p.TCPFlags = packet.TCPFlags(n)
	case "port":
		p.SourcePort = packet.Exactly(uint16(n))
	default:
		return fmt.Errorf("%q: want from, port, mark, ttl, tos, flags, in or more", word)
	}
	return err
}

func parseEnd(s string) (netip.Addr, packet.Port, error) {
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a.Addr(), packet.Exactly(a.Port()), nil
	}
	a, err := netip.ParseAddr(s)
	return a, packet.Port{}, err
}
