package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// FormatVersion is the version of the capture format that this package writes and reads. docs/capture-format.md describes it.
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

// manifest says what a capture is.
type manifest struct {
	Format     string    `json:"format"`
	Version    int       `json:"version"`
	Packetwalk string    `json:"packetwalk,omitempty"`
	Taken      time.Time `json:"taken"`
	Redacted   bool      `json:"redacted"`
}

// hostHead tells of one host and its files.
type hostHead struct {
	Name    string      `json:"name"`
	Taken   time.Time   `json:"taken"`
	Kernel  string      `json:"kernel,omitempty"`
	Machine string      `json:"machine,omitempty"`
	NetNS   uint64      `json:"netns,omitempty"`
	Files   []fileEntry `json:"files"`
}

// fileEntry is one file. One with an Error has what the tool printed before it failed; one that was Skipped has no file.
type fileEntry struct {
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
	// ErrVersion: another version of packetwalk made it, in another format.
	ErrVersion = errors.New("unsupported capture format")
	// ErrDamaged: it is a capture, but not whole.
	ErrDamaged = errors.New("the capture is damaged")
)

// Limits of what is read at once, so that a hostile capture cannot fill the memory. A node with 10,000 services prints some 100 MB.
const (
	maxFiles       = 1000      // of a host
	maxFileBytes   = 512 << 20 // of a file, not compressed
	maxMemberBytes = 1 << 30   // of a host or a list of objects, compressed or not
	// maxManifest bounds the manifest, whose fields take some 200 bytes, and the tar headers before it.
	maxManifest = 64 << 10
	// maxHosts is twice what Kubernetes is made for: 150,000 pods on 5,000 nodes. The index tells of each in some 200 bytes.
	maxHosts = 300_000
	maxIndex = 1 << 10 * maxHosts
	// maxRatio is what a member may be larger than it is compressed, when it is larger than smallMember. Rules come down to a 20th.
	maxRatio    = 100
	smallMember = 1 << 20
	// minMember is less than the smallest member takes: a gzip member with a tar header.
	minMember = 64
	// maxHostValues bounds the JSON values of a host.json, which has five for each file. Errors have commas, too.
	maxHostValues = 100 * maxFiles
	// maxObjects bounds the JSON objects in a file of a host.
	maxObjects = 1_000_000
	// maxNoteValues bounds those of an index besides its hosts: notes name each machine that could not be read.
	maxNoteValues = 100_000
)

func hostPath(host, file string) string { return "hosts/" + host + "/" + file }
func listPath(file string) string       { return "kubernetes/" + file }

// unmarshal reads JSON of a limited number of values. The text "{}," can become a hundred bytes and more in memory.
func unmarshal(data []byte, most int, into any) error {
	// Each value but the first follows one of these. Those in texts count, too.
	n := 1
	for _, before := range []string{"{", "[", ","} {
		n += bytes.Count(data, []byte(before))
	}
	if n > most {
		return fmt.Errorf("%d JSON values are more than a capture may have (%d)", n, most)
	}
	return json.Unmarshal(data, into)
}

// checkObjects returns an error if JSON has more objects than its bytes can honestly be, or more than most. The text "{}," can become 500
// bytes in memory. nft's rules have an object in 28 bytes, other files one in 40 and more.
func checkObjects(data []byte, most int) error {
	const fewest, small = 12, 1000
	if n := bytes.Count(data, []byte("{")); n > min(most, small+len(data)/fewest) {
		return fmt.Errorf("%d JSON objects in %d bytes are more than a capture may have", n, len(data))
	}
	return nil
}

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
