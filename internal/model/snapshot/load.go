package snapshot

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
)

// loader reads one host's texts, in the order of Dumps.
type loader struct {
	host  *Host
	raw   *Raw
	names func(netns uint64) string // the host that has a namespace, "" for none
	// at finds a link by its index in a host; it is asked only for wires whose end has no name.
	at func(host string, index int) string

	flows []packet.Flow
	saved []*netfilter.Table // of iptables and ebtables, until nft's are known
}

// assume notes something that reading had to assume.
func (l *loader) assume(format string, a ...any) {
	l.host.Assumed = append(l.host.Assumed, fmt.Sprintf(format, a...))
}

// errNotDumped is why a part is missing that has no file.
var errNotDumped = errors.New("not in the capture")

// Load reads what the tools of a host printed. What cannot be read, or was not dumped, is told in Missing; it is never an error.
func Load(raw *Raw) *Host {
	return load(raw, func(uint64) string { return "" }, func(string, int) string { return "" })
}

func load(raw *Raw, names func(uint64) string, at func(string, int) string) *Host {
	l := &loader{raw: raw, names: names, at: at, host: &Host{
		Name: raw.Name, Taken: raw.Taken, Kernel: raw.Kernel, FIB: &fib.State{Kernel: raw.Kernel}, Rules: &netfilter.Ruleset{}, IPSets: map[string]*netfilter.Set{},
		Sysctls: map[string]string{}, Missing: map[Part]string{},
	}}
	for _, row := range Dumps {
		out, ok := raw.Outputs[row.File]
		var err error
		switch {
		case !ok && row.Only != "":
		case !ok:
			err = errNotDumped
		case out.Skipped != "":
		case out.Error != "":
			err = errors.New(out.Error)
		default:
			err = row.load(l, out)
		}
		if err != nil {
			l.missing(row, out, err)
		}
	}
	l.finish()
	return l.host
}

// missing notes that a part is not known, or not wholly.
func (l *loader) missing(row Dump, out Output, err error) {
	what := out.Command
	if what == "" {
		what = row.File
	}
	note := what + ": " + err.Error()
	if before := l.host.Missing[row.Part]; before != "" {
		note = before + "; " + note
	}
	l.host.Missing[row.Part] = note
}

// finish makes what look-ups need, when everything is read.
func (l *loader) finish() {
	state := l.host.FIB
	for _, link := range state.Links {
		for _, family := range []string{"ipv4", "ipv6"} {
			if v, _ := l.host.Sysctl("net", family, "conf", link.Name, "ignore_routes_with_linkdown"); v == "1" {
				if state.IgnoreLinkDown == nil {
					state.IgnoreLinkDown = map[string]bool{}
				}
				state.IgnoreLinkDown[link.Name] = true
			}
		}
	}
	state.Index()
	l.host.Rules.Tables = append(l.host.Rules.Tables, l.saved...) // nft's list could not be had
	l.host.Rules.Index()
	l.host.Flows = conntrack.NewTable(l.flows)
}

// read is a loader for what one function parses and one list takes.
func read[T any](out Output, parse func([]byte) ([]T, error), into *[]T) error {
	list, err := parse(out.Data)
	if err != nil {
		return err
	}
	*into = append(*into, list...)
	return nil
}

func loadLinks(l *loader, out Output) error { return read(out, fib.ParseLinks, &l.host.FIB.Links) }
func loadAddresses(l *loader, out Output) error {
	return read(out, fib.ParseAddresses, &l.host.FIB.Addresses)
}
func loadRoutes(l *loader, out Output) error { return read(out, fib.ParseRoutes, &l.host.FIB.Routes) }
func loadFDB(l *loader, out Output) error    { return read(out, fib.ParseFDB, &l.host.FIB.FDB) }

func loadPolicy(ipv6 bool) func(*loader, Output) error {
	return func(l *loader, out Output) error {
		parse := func(data []byte) ([]fib.Rule, error) { return fib.ParseRules(data, ipv6) }
		return read(out, parse, &l.host.FIB.Rules)
	}
}

func loadNeighbours(proxy bool) func(*loader, Output) error {
	return func(l *loader, out Output) error {
		list, err := fib.ParseNeighbours(out.Data)
		for i := range list {
			list[i].Proxy = proxy
		}
		l.host.FIB.Neighbours = append(l.host.FIB.Neighbours, list...)
		return err
	}
}

func loadSysctls(l *loader, out Output) error {
	for line := range bytes.Lines(out.Data) {
		key, value, ok := strings.Cut(string(line), "=")
		if !ok {
			return fmt.Errorf("no setting: %q", bytes.TrimSpace(line))
		}
		l.host.Sysctls[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return nil
}

func loadListeners(l *loader, out Output) error {
	return json.Unmarshal(out.Data, &l.host.Listeners)
}

// loadWires finds the host at the other end of each wire: by the name or the namespace that was noted. An end in a namespace that nobody
// knows is no peer; neither is it missing, since a machine has wires that lead out of what was captured.
func loadWires(l *loader, out Output) error {
	var wires []Wire
	if err := json.Unmarshal(out.Data, &wires); err != nil {
		return err
	}
	for _, w := range wires {
		p := Peer{Link: w.Link, Host: w.Host, PeerLink: w.PeerLink}
		switch {
		case w.NSID == nil:
			p.Host = l.host.Name
		case p.Host == "" && w.NetNS != 0:
			p.Host = l.names(w.NetNS)
		}
		if p.Host != "" && p.PeerLink == "" {
			p.PeerLink = l.at(p.Host, w.PeerIndex)
		}
		if p.Host != "" {
			l.host.Peers = append(l.host.Peers, p)
		}
	}
	return nil
}

// Peer finds the other end of a wire; false where it is not known.
func (h *Host) Peer(link string) (Peer, bool) {
	for _, p := range h.Peers {
		if p.Link == link {
			return p, true
		}
	}
	return Peer{}, false
}

// notFound is the error for a host that there is none of.
func notFound(name string, there []string) error {
	const most = 12
	list := strings.Join(there[:min(len(there), most)], ", ")
	if len(there) > most {
		list += fmt.Sprintf(" and %d more", len(there)-most)
	}
	return fmt.Errorf("host %q: %w; there are: %s", name, fs.ErrNotExist, list)
}
