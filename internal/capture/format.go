package capture

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// FormatVersion is the version of the capture format that this package writes, and the newest that it reads. docs/capture.md tells what is
// in a version.
const FormatVersion = 2

// formatName stands in every manifest.
const formatName = "packetwalk-capture"

// Names of the files of a capture that are neither a host's texts nor lists of objects.
const (
	manifestFile = "manifest.json" // the first of all
	indexFile    = "index.json"    // the last of all
	hostFile     = "host.json"     // the first of a host
)

// Head is what a capture says of itself.
type Head struct {
	Packetwalk string // version that took it
	Taken      time.Time
	Redacted   bool
	Tools      map[string]string // versions, as the tools tell them
	Notes      []string          // what could not be had, in words
}

// manifest says what a capture is. In version 1 it tells of everything in it.
type manifest struct {
	Format     string            `json:"format"`
	Version    int               `json:"version"`
	Packetwalk string            `json:"packetwalk,omitempty"`
	Taken      time.Time         `json:"taken"`
	Redacted   bool              `json:"redacted"`
	Tools      map[string]string `json:"tools,omitempty"`
	Hosts      []manifestHost    `json:"hosts,omitempty"`
	Kubernetes []manifestEntry   `json:"kubernetes,omitempty"`
	Notes      []string          `json:"notes,omitempty"`
}

// manifestHost tells of one host and its files.
type manifestHost struct {
	Name    string          `json:"name"`
	Taken   time.Time       `json:"taken"`
	Kernel  string          `json:"kernel,omitempty"`
	Machine string          `json:"machine,omitempty"`
	NetNS   uint64          `json:"netns,omitempty"`
	Files   []manifestEntry `json:"files"`
}

// manifestEntry is one file. One with an Error has what the tool printed before it failed; one that was Skipped has no file.
type manifestEntry struct {
	File    string `json:"file"`
	Command string `json:"command,omitempty"`
	Bytes   int64  `json:"bytes"`
	Error   string `json:"error,omitempty"`
	Skipped string `json:"skipped,omitempty"`
}

// index is where everything is in the file: member by member, without a gap between them.
type index struct {
	Tools      map[string]string `json:"tools,omitempty"`
	Notes      []string          `json:"notes,omitempty"`
	Manifest   member            `json:"manifest"`
	Hosts      []indexHost       `json:"hosts"`
	Kubernetes []indexList       `json:"kubernetes"`
}

type indexHost struct {
	Name    string `json:"name"`
	Machine string `json:"machine,omitempty"`
	NetNS   uint64 `json:"netns,omitempty"`
	member
}

type indexList struct {
	File string `json:"file"`
	Text int64  `json:"text"` // bytes of the list
	member
}

// member is one of the members of the gzip file (RFC 1952, 2.2), which can be read by itself.
type member struct {
	At     int64  `json:"at"`     // offset
	Size   int64  `json:"size"`   // bytes, compressed
	Bytes  int64  `json:"bytes"`  // not compressed
	SHA256 []byte `json:"sha256"` // of the Size bytes
}

// The errors of Read that a caller may want to tell apart.
var (
	// ErrNotCapture: the file is something else.
	ErrNotCapture = errors.New("not a capture; 'packetwalk capture' makes one")
	// ErrNewer: it was made by a newer packetwalk.
	ErrNewer = errors.New("the capture is of a newer format")
	// ErrDamaged: it is a capture, but not whole.
	ErrDamaged = errors.New("the capture is damaged")
)

// limits bound what is read at once, so that a made-up capture cannot fill the memory: of version 1 that is the whole file, later a host or
// a list of objects. A node with 10,000 services prints some 100 MB.
type limits struct {
	files       int
	file, total int64 // bytes, not compressed
}

var (
	wholeLimits  = limits{files: 200_000, file: 512 << 20, total: 1 << 30}
	memberLimits = limits{files: 1000, file: 512 << 20, total: 1 << 30}
)

const (
	// maxManifest is the most bytes of a manifest, which in version 1 tells of each file in some 100.
	maxManifest = 32 << 20
	// maxHosts is twice what Kubernetes is made for: 150,000 pods on 5,000 nodes. The index tells of each in some 200 bytes.
	maxHosts = 300_000
	maxIndex = 1 << 10 * maxHosts
	// maxRatio is what a member may be larger than it is compressed, when it is larger than smallMember. Rules come down to a 20th.
	maxRatio    = 200
	smallMember = 16 << 20
)

func hostPath(host, file string) string { return "hosts/" + host + "/" + file }
func listPath(file string) string       { return "kubernetes/" + file }

func damaged(where string, err error) error {
	if errors.Is(err, ErrDamaged) {
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("it ends too early; copy it again")
	}
	return fmt.Errorf("%w: %s: %w", ErrDamaged, where, err)
}

// HostName reports whether a host in a capture can have the name.
func HostName(name string) bool { return plainPath(name) }

// fileName reports whether a file of a host, or a list, can have the name.
func fileName(name string) bool { return plainPath(name) && !strings.Contains(name, "/") }

// plainPath reports whether a name is elements of printable characters between single slashes, none of them "." or "..".
func plainPath(name string) bool {
	if len(name) > 600 {
		return false
	}
	for _, e := range strings.Split(name, "/") {
		if e == "" || e == "." || e == ".." ||
			strings.ContainsFunc(e, func(r rune) bool { return r <= ' ' || r == '\\' || r == 0x7f || r == '\ufffd' }) {
			return false
		}
	}
	return true
}
