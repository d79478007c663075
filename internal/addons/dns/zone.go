package dns

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/limitio"
)

// maxZoneFile is how many bytes of a zone's file are read: maxRecords of the longest lines.
const maxZoneFile = maxRecords * (255 + 40)

// A Zone has its records in a file, one "NAME ADDRESS" a line. A name server changes the file as updates come, by a new one in its place;
// others that have the same file see that. No file is an empty zone.
type Zone struct {
	Name string // lower case, without the last dot
	File string

	changing sync.Mutex // held while an update is made
	mu       sync.Mutex
	read     fs.FileInfo // of the file as it was read; nil: none was
	records  Records     // replaced, never changed
}

// current gives the zone's records. A file that cannot be read leaves them as they were.
func (z *Zone) current() Records {
	z.mu.Lock()
	defer z.mu.Unlock()
	info, err := os.Stat(z.File)
	if errors.Is(err, fs.ErrNotExist) {
		z.records, z.read = nil, nil
		return nil
	}
	if err != nil {
		return z.records
	}
	if z.read != nil && os.SameFile(info, z.read) && info.ModTime().Equal(z.read.ModTime()) && info.Size() == z.read.Size() {
		return z.records
	}
	if text, err := limitio.ReadFile(z.File, maxZoneFile); err == nil {
		z.records, z.read = parseLines(text), info
	}
	return z.records
}

// update makes the changes of an update, in the file first. Those of the same moment are taken one after the other.
func (z *Zone) update(m *dns.Msg) error {
	z.changing.Lock()
	defer z.changing.Unlock()
	next, err := z.current().apply(z.Name, m)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(z.File, next.lines(), 0o600); err != nil {
		return err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.read = nil // whatever the file's times say
	return nil
}

// A Key is who may change and transfer a zone (TSIG, RFC 8945, hmac-sha256).
type Key struct {
	Name   string // as a DNS name, without the last dot
	Secret string // base64
}

// ReadKey reads the secret of a key from a file.
func ReadKey(name, file string) (*Key, error) {
	secret, err := limitio.ReadFile(file, maxZoneFile)
	if err != nil {
		return nil, err
	}
	return NewKey(name, string(secret))
}

// NewKey returns a key with a secret in base64, with space around it or without.
func NewKey(name, secret string) (*Key, error) {
	secret = strings.TrimSpace(secret)
	octets, err := base64.StdEncoding.DecodeString(secret)
	if err != nil || len(octets) < minSecret || name == "" {
		return nil, fmt.Errorf("key %q needs a name and a secret of %d bytes or more, in base64", name, minSecret)
	}
	return &Key{name, secret}, nil
}

// minSecret is how many bytes a secret has at least (RFC 8945, 8: as many as the hash's output).
const minSecret = 32

// secrets returns the key as the library takes it.
func (k *Key) secrets() map[string]string {
	if k == nil {
		return nil
	}
	return map[string]string{k.owner(): k.Secret}
}

func (k *Key) owner() string { return dns.CanonicalName(k.Name) }
