package app

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"packetwalk.dev/internal/addons/dnsupdate"
)

// A dynamicZone has its names in a file, one "NAME ADDRESS" a line. A name server changes the file as updates come, by a new one in its place;
// others that have the same file see that. No file is an empty zone.
type dynamicZone struct {
	name string // lower case, without the last dot
	file string

	mu   sync.Mutex
	read fs.FileInfo // of the file as it was read; nil: none was
	all  zone        // replaced, never changed
}

// current gives the zone's names. A file that cannot be read, or not in full, leaves the names as they were.
func (d *dynamicZone) current() zone {
	d.mu.Lock()
	defer d.mu.Unlock()
	info, err := os.Stat(d.file)
	if errors.Is(err, fs.ErrNotExist) {
		d.all, d.read = nil, nil
		return nil
	}
	if err != nil {
		return d.all
	}
	if d.read != nil && os.SameFile(info, d.read) && info.ModTime().Equal(d.read.ModTime()) && info.Size() == d.read.Size() {
		return d.all
	}
	if text, err := os.ReadFile(d.file); err == nil {
		d.all, d.read = parseZoneFile(text), info
	}
	return d.all
}

// parseZoneFile reads the lines that are lines of a zone file.
func parseZoneFile(text []byte) zone {
	z := zone{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, address, _ := strings.Cut(lines.Text(), " ")
		if a, err := netip.ParseAddr(address); err == nil && name != "" {
			z[name] = append(z[name], a)
		}
	}
	return z
}

func (d *dynamicZone) answer(msg []byte) []byte { return d.current().answer(msg) }

// change makes the changes of an update, in the file first.
func (d *dynamicZone) change(u dnsupdate.Update) error {
	records := dnsupdate.Records(maps.Clone(d.current()))
	if records == nil {
		records = dnsupdate.Records{}
	}
	u.Apply(records)
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(records)) {
		for _, a := range records[name] {
			fmt.Fprintf(&b, "%s %s\n", name, a)
		}
	}
	next := d.file + ".next"
	if err := os.WriteFile(next, b.Bytes(), 0o600); err != nil {
		return err
	}
	if err := os.Rename(next, d.file); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.read = nil // whatever the file's times say
	return nil
}

func isUpdate(msg []byte) bool { return len(msg) >= 3 && msg[2]>>3 == dnsupdate.OpCode }

// update answers an update. Those of the same moment are taken one after the other.
func (s *nameServer) update(msg []byte, from net.Addr) []byte {
	s.changing.Lock()
	defer s.changing.Unlock()
	u, err := dnsupdate.Parse(msg)
	if err == nil && u.Zone != s.dynamic.name {
		err = &dnsupdate.Error{Code: dnsupdate.NotZone, Reason: "no such zone"}
	}
	if err == nil {
		err = s.dynamic.change(u)
	}
	code := dnsupdate.OK
	if err != nil {
		code = dnsupdate.Failure
		if refusal := (*dnsupdate.Error)(nil); errors.As(err, &refusal) {
			code = refusal.Code
		}
		fmt.Fprintf(s.log, "%s update of %s refused: %v\n", addrPort(from), logged(u.Zone), err)
		return dnsupdate.Answer(msg, code)
	}
	fmt.Fprintf(s.log, "%s update of %s: %d changes\n", addrPort(from), logged(u.Zone), len(u.Operations))
	return dnsupdate.Answer(msg, code)
}

// transfer answers a question for the whole zone; nil when the message is none.
func (s *nameServer) transfer(msg []byte, from net.Addr) [][]byte {
	if !s.updates || dnsupdate.TransferZone(msg) != s.dynamic.name {
		return nil
	}
	messages, err := dnsupdate.Transfer(msg, s.dynamic.name, dnsupdate.Records(s.dynamic.current()), dnsTTL)
	if err != nil {
		fmt.Fprintf(s.log, "%s transfer of %s: %v\n", addrPort(from), s.dynamic.name, err)
		return [][]byte{dnsupdate.Answer(msg, dnsupdate.Failure)}
	}
	return messages
}
