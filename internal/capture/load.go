package capture

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iproute"
)

// Loader reads the texts of one host.
type Loader struct {
	// Host is what has been read so far; look-ups in it are ready after Finish.
	Host *snapshot.Host

	names func(netns uint64) string // the host that has a namespace, "" for none
	// at finds a link by its index in a host; it is asked only for wires whose end has no name.
	at func(host string, index int) string

	outputs map[string]Output
	flows   []packet.Flow
	saved   []*netfilter.Table // of iptables and ebtables, until nft's are known
}

// NewLoader makes one for a host of which nothing is known but its name.
func NewLoader(name string) *Loader {
	return &Loader{
		Host: &snapshot.Host{
			Name: name, FIB: &fib.State{}, Rules: &netfilter.Ruleset{}, IPSets: map[string]*netfilter.Set{}, Sysctls: map[string]string{},
			Missing: map[snapshot.Part]string{}, Unread: map[snapshot.Part]string{}, Partial: map[snapshot.Part]string{},
		},
		names: func(uint64) string { return "" },
		at:    func(string, int) string { return "" },
	}
}

// Assume notes something that reading had to assume.
func (l *Loader) Assume(format string, a ...any) {
	l.Host.Assumed = append(l.Host.Assumed, fmt.Sprintf(format, a...))
}

// Read reads one text, as the row of [Dumps] for file does; part is that row's. An error means that the part is not known, or not wholly.
func (l *Loader) Read(file string, text []byte) (part snapshot.Part, err error) {
	i := slices.IndexFunc(Dumps, func(d Dump) bool { return d.File == file })
	if i < 0 {
		return "", fmt.Errorf("no text of a host is called %s", file)
	}
	return Dumps[i].Part, Dumps[i].read(l, text)
}

// AddTables adds tables that another reader made of what iptables printed.
func (l *Loader) AddTables(tables ...*netfilter.Table) { l.saved = append(l.saved, tables...) }

// read loads a text of a size and number of objects that can be honest.
func (d *Dump) read(l *Loader, text []byte) error {
	switch {
	case d.File == RulesetFile:
		if err := checkObjects(text, maxFileBytes); err != nil {
			return err
		}
	case strings.HasSuffix(d.File, ".json"):
		if err := checkObjects(text, maxObjects); err != nil {
			return err
		}
	}
	return d.load(l, text)
}

// errNotDumped is why a part is missing that has no file.
var errNotDumped = errors.New("not in the capture")

// Load reads what the tools of a host printed. Each part ends as read, absent or unread: the host's Unread says what could not be read, and
// why. Missing has what captures of before do not have. Neither is an error.
func (l *Loader) Load(raw *Raw) *snapshot.Host {
	l.Host.Taken, l.Host.Kernel, l.Host.FIB.Kernel, l.outputs = raw.Taken, raw.Kernel, raw.Kernel, raw.Outputs
	failed := map[string]string{} // by file
	for _, row := range Dumps {
		out, ok := raw.Outputs[row.File]
		var err error
		switch {
		case !ok && row.Only == "":
			err = errNotDumped
		case !ok && row.Later:
			l.Host.Missing[row.Part] = errNotDumped.Error()
		case !ok:
		case out.Skipped != "":
		case out.Error != "":
			err = errors.New(out.Error)
		default:
			err = row.read(l, out.Data)
		}
		if err != nil {
			failed[row.File] = cmp.Or(out.Command, row.File) + ": " + err.Error()
		}
	}
	l.setUnread(failed)
	return l.Finish()
}

// setUnread notes the parts whose files could not be read, by file, unless another file that was read has what they show.
func (l *Loader) setUnread(failed map[string]string) {
	for _, row := range Dumps {
		why := failed[row.File]
		if why == "" || row.AlsoIn != "" && failed[row.AlsoIn] == "" {
			continue
		}
		if before := l.Host.Unread[row.Part]; before != "" {
			why = before + "; " + why
		}
		l.Host.Unread[row.Part] = why
	}
}

// Finish makes what look-ups need, when everything is read.
func (l *Loader) Finish() *snapshot.Host {
	l.Host.FIB.Index()
	l.Host.Rules.Tables = append(l.Host.Rules.Tables, l.saved...) // nft's list could not be had
	l.legacyFirst()
	l.Host.Rules.Index()
	l.Host.Flows = conntrack.NewTable(l.flows)
	return l.Host
}

// read returns a loader for what one function parses and one list takes.
func read[T any](text []byte, parse func([]byte) ([]T, error), into *[]T) error {
	list, err := parse(text)
	if err != nil {
		return err
	}
	*into = append(*into, list...)
	return nil
}

func loadLinks(l *Loader, text []byte) error {
	return read(text, iproute.ParseLinks, &l.Host.FIB.Links)
}
func loadAddresses(l *Loader, text []byte) error {
	return read(text, iproute.ParseAddresses, &l.Host.FIB.Addresses)
}
func loadRoutes(l *Loader, text []byte) error {
	return read(text, iproute.ParseRoutes, &l.Host.FIB.Routes)
}
func loadFDB(l *Loader, text []byte) error { return read(text, iproute.ParseFDB, &l.Host.FIB.FDB) }

func loadPolicy(ipv6 bool) func(*Loader, []byte) error {
	return func(l *Loader, text []byte) error {
		parse := func(data []byte) ([]fib.Rule, error) { return iproute.ParseRules(data, ipv6) }
		return read(text, parse, &l.Host.FIB.Rules)
	}
}

func loadNeighbours(proxy bool) func(*Loader, []byte) error {
	return func(l *Loader, text []byte) error {
		list, err := iproute.ParseNeighbours(text)
		for i := range list {
			list[i].Proxy = proxy
		}
		l.Host.FIB.Neighbours = append(l.Host.FIB.Neighbours, list...)
		return err
	}
}

func loadSysctls(l *Loader, text []byte) error {
	for line := range bytes.Lines(text) {
		key, value, ok := strings.Cut(string(line), "=")
		if !ok {
			return fmt.Errorf("no setting: %q", bytes.TrimSpace(line))
		}
		l.Host.Sysctls[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return nil
}

func loadListeners(l *Loader, text []byte) error {
	return json.Unmarshal(text, &l.Host.Listeners)
}

func loadIPVS(l *Loader, text []byte) error {
	return json.Unmarshal(text, &l.Host.VirtualServices)
}

func loadRecent(l *Loader, text []byte) error {
	var lists []RecentList
	if err := json.Unmarshal(text, &lists); err != nil {
		return err
	}
	l.Host.RecentLists = map[string]netfilter.RecentList{}
	for _, list := range lists {
		read := netfilter.RecentList{}
		for _, e := range list.Entries {
			entry := &netfilter.RecentEntry{}
			for _, ms := range e.Seen {
				entry.Seen = append(entry.Seen, time.Duration(min(ms, maxAge))*time.Millisecond)
			}
			read[e.Address] = entry
		}
		l.Host.RecentLists[list.List] = read
	}
	return nil
}

// maxAge is more than any rule asks for, in milliseconds: "--seconds" has 32 bits.
const maxAge = 1 << 43

func loadIPsec(l *Loader, text []byte) error {
	return json.Unmarshal(text, &l.Host.IPsec)
}

func loadPrograms(l *Loader, text []byte) error {
	return json.Unmarshal(text, &l.Host.Programs)
}

func loadAgents(l *Loader, text []byte) error {
	return json.Unmarshal(text, &l.Host.Agents)
}

// loadAttached gives links the programs that get their packets beside rules.
func loadAttached(l *Loader, text []byte) error {
	var all []Attachment
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	for _, a := range all {
		if a.Program != nil {
			a.What = a.Program.String()
		}
		l.attach(a.Link, a.Out, a.What)
	}
	return nil
}

// loadWires finds the host at the other end of each wire: by the name or the namespace that was noted. An end in an unknown
// namespace is not a peer. It is not missing either: a machine has wires that lead out of the capture.
func loadWires(l *Loader, text []byte) error {
	var wires []Wire
	if err := json.Unmarshal(text, &wires); err != nil {
		return err
	}
	for _, w := range wires {
		p := snapshot.Peer{Link: w.Link, Host: w.Host, PeerLink: w.PeerLink}
		switch {
		case w.NSID == nil:
			p.Host = l.Host.Name
		case p.Host == "" && w.NetNS != 0:
			p.Host = l.names(w.NetNS)
		}
		if p.Host != "" && p.PeerLink == "" {
			p.PeerLink = l.at(p.Host, w.PeerIndex)
		}
		if p.Host != "" {
			l.Host.Peers = append(l.Host.Peers, p)
		}
	}
	return nil
}
