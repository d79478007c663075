package capture_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/testing/capturetest"
)

const worldA = "testdata/world-a.pwcap.tar.gz"

func small() *capturetest.Content {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &capturetest.Content{
		Head: capture.Head{Packetwalk: "v1", Taken: at, Tools: map[string]string{"ip": "iproute2-6.1.0"}, Notes: []string{"one note"}},
		Hosts: []*capture.Raw{{
			Name: "node/n1", Taken: at, Kernel: "6.1.0", Machine: "n1", NetNS: 4026531840,
			Outputs: map[string]capture.Output{
				"ip-link.json":             {Command: "ip -d -j link show", Data: []byte(`[{"ifindex":1,"ifname":"lo","flags":["UP"],"mtu":65536}]`)},
				"nft.json":                 {Command: "nft -j -a list ruleset", Data: []byte{}, Error: "exit status 1: no"},
				"iptables-legacy-save.txt": {Skipped: "there are none"},
			},
		}, {Name: "pod/default/p", Taken: at, Outputs: map[string]capture.Output{}}},
		Lists: map[string][]byte{"nodes.json": []byte(`{"items":[{"metadata":{"name":"n1"}}]}`)},
	}
}

func TestRoundTrip(t *testing.T) {
	want := small()
	got, err := capturetest.Read(want.Pack(t))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back (-written +read):\n%s", diff)
	}
}

// TestTarReads: other programs read a capture as what it is, one archive.
func TestTarReads(t *testing.T) {
	zip, err := gzip.NewReader(bytes.NewReader(small().Pack(t)))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	archive := tar.NewReader(zip)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if rest, err := io.ReadAll(zip); err != nil || len(rest) > 0 {
		t.Errorf("%d bytes behind the archive, %v", len(rest), err)
	}
	first, last := names[0], names[len(names)-1]
	slices.Sort(names)
	want := []string{"hosts/node/n1/host.json", "hosts/node/n1/ip-link.json", "hosts/node/n1/nft.json", "hosts/pod/default/p/host.json",
		"index.json", "kubernetes/nodes.json", "manifest.json"}
	if !slices.Equal(names, want) || first != "manifest.json" || last != "index.json" {
		t.Errorf("files %v, first %s, last %s", names, first, last)
	}
}

// reads counts what is read of a file.
type reads struct {
	in   *bytes.Reader
	n    int
	from map[int64]bool // offsets
}

func (r *reads) ReadAt(p []byte, at int64) (int, error) {
	n, err := r.in.ReadAt(p, at)
	r.n += n
	r.from[at] = true
	return n, err
}

// TestReadsWhatIsAskedFor: of a capture of many hosts, the index is read, and the hosts that are asked for.
func TestReadsWhatIsAskedFor(t *testing.T) {
	c := small()
	random := rand.NewChaCha8([32]byte{})
	for i := range 200 {
		text := make([]byte, 20_000)
		_, _ = random.Read(text)
		c.Hosts = append(c.Hosts, &capture.Raw{Name: fmt.Sprintf("node/m%d", i), Outputs: map[string]capture.Output{"nft.json": {Data: text}}})
	}
	file := c.Pack(t)
	counted := &reads{in: bytes.NewReader(file), from: map[int64]bool{}}
	f, err := capture.Read(counted, int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	if opening := counted.n; opening > 100_000 {
		t.Errorf("opening reads %d of %d bytes", opening, len(file))
	}
	counted.n, counted.from = 0, map[int64]bool{}
	for range 2 {
		raw, err := f.Origin().Fetch("node/m77")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(raw.Outputs["nft.json"].Data, c.Hosts[2+77].Outputs["nft.json"].Data) {
			t.Error("another text")
		}
	}
	if len(counted.from) != 1 || counted.n > 2*21_000 {
		t.Errorf("a host twice: %d bytes at %v", counted.n, counted.from)
	}
	if _, err := f.Origin().Fetch("node/m777"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a host that there is none of: %v", err)
	}
}

// TestHalfReceived: a capture that ends anywhere before its end is refused when it is opened.
func TestHalfReceived(t *testing.T) {
	whole := small().Pack(t)
	for n := range whole {
		_, err := capture.Read(bytes.NewReader(whole[:n]), int64(n))
		if !errors.Is(err, capture.ErrDamaged) && !errors.Is(err, capture.ErrNotCapture) {
			t.Fatalf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
	for _, n := range []int{len(whole) / 2, len(whole) - 1} {
		if _, err := capture.Read(bytes.NewReader(whole[:n]), int64(n)); !errors.Is(err, capture.ErrDamaged) || !strings.Contains(err.Error(), "copy it again") {
			t.Errorf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
	if _, err := capture.Read(bytes.NewReader(append(bytes.Clone(whole), 0)), int64(len(whole)+1)); !errors.Is(err, capture.ErrDamaged) {
		t.Errorf("a byte more: %v", err)
	}
}

// TestDamagedByte: a byte that was changed is found out, when it is opened or when what has it is read.
func TestDamagedByte(t *testing.T) {
	whole := small().Pack(t)
	for at := range whole {
		file := bytes.Clone(whole)
		file[at] ^= 0x10
		if _, err := capturetest.Read(file); !errors.Is(err, capture.ErrDamaged) && !errors.Is(err, capture.ErrNotCapture) {
			t.Fatalf("byte %d: %v", at, err)
		}
	}
}

// TestBrokenOff: what was written before an error is no capture.
func TestBrokenOff(t *testing.T) {
	c := small()
	origin := c.Origin()
	fetch := origin.Fetch
	for what, take := range map[string]func(o capture.Origin, out io.Writer) error{
		"named and gone": func(o capture.Origin, out io.Writer) error {
			o.Fetch = func(name string) (*capture.Raw, error) {
				if name == "node/n1" {
					return nil, errors.New("it is missing")
				}
				return fetch(name)
			}
			_, err := capture.Take(t.Context(), o, out, c.Head, "node/n1", "pod/default/p")
			return err
		},
		"called off": func(o capture.Origin, out io.Writer) error {
			ctx, cancel := context.WithCancel(t.Context())
			o.Fetch = func(name string) (*capture.Raw, error) {
				cancel()
				return nil, ctx.Err()
			}
			_, err := capture.Take(ctx, o, out, c.Head)
			return err
		},
	} {
		var file bytes.Buffer
		if err := take(origin, &file); err == nil {
			t.Errorf("%s: no error", what)
		}
		if _, err := capturetest.Read(file.Bytes()); !errors.Is(err, capture.ErrDamaged) {
			t.Errorf("%s: what was written reads with %v", what, err)
		}
	}
}

// TestTakeNotes: a host that went away, and lists that are not to be had, are notes, and the rest is there.
func TestTakeNotes(t *testing.T) {
	c := small()
	origin := c.Origin()
	fetch := origin.Fetch
	origin.Fetch = func(name string) (*capture.Raw, error) {
		if name == "node/n1" {
			return nil, errors.New("node/n1 is missing")
		}
		return fetch(name)
	}
	origin.Lists = func() (map[string][]byte, error) { return map[string][]byte{"pods.json": nil}, errors.New("forbidden") }
	var file bytes.Buffer
	taken, err := capture.Take(t.Context(), origin, &file, c.Head)
	if err != nil {
		t.Fatal(err)
	}
	read, err := capturetest.Read(file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"one note", "node/n1 is missing", "forbidden"}
	if !slices.Equal(read.Notes, want) || !slices.Equal(taken.Notes, want) ||
		len(read.Hosts) != 1 || taken.Hosts != 1 || len(read.Lists) != 0 {
		t.Errorf("notes %q, %q, %d hosts, %d lists", read.Notes, taken.Notes, len(read.Hosts), len(read.Lists))
	}
}

// TestTakeNotesOnce: what is wrong with a machine is said once, wherever its hosts are among the others by name.
func TestTakeNotesOnce(t *testing.T) {
	why := map[string]string{"node/a": "a is missing", "node/b": "b is missing", "pod/p/one": "a is missing", "pod/p/two": "b is missing"}
	origin := small().Origin()
	fetch := origin.Fetch
	origin.Fetch = func(name string) (*capture.Raw, error) {
		if why[name] != "" {
			return nil, errors.New(why[name])
		}
		return fetch(name)
	}
	for name := range why {
		origin.Hosts[name] = capture.NetNS{}
	}
	head := capture.Head{Notes: []string{"z", "a"}}
	taken, err := capture.Take(t.Context(), origin, io.Discard, head)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"z", "a", "a is missing", "b is missing"}; !slices.Equal(taken.Notes, want) {
		t.Errorf("notes %q, want %q", taken.Notes, want)
	}
}

// entry is one file of a tar that a test makes up.
type entry struct {
	name, data string
	kind       byte
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	pack := tar.NewWriter(zip)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Size: int64(len(e.data)), Mode: 0o644, Typeflag: e.kind}
		if e.kind == tar.TypeSymlink {
			h.Size, h.Linkname, e.data = 0, e.data, ""
		}
		if err := pack.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := pack.Write([]byte(e.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(pack.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// manifestOf returns a manifest with one host that has one file.
func manifestOf(version int, host, file string, bytes int) entry {
	return entry{name: "manifest.json", data: fmt.Sprintf(
		`{"format":"packetwalk-capture","version":%d,"hosts":[{"name":%q,"files":[{"file":%q,"bytes":%d}]}]}`, version, host, file, bytes)}
}

func TestReadErrors(t *testing.T) {
	whole := small().Pack(t)
	for _, tt := range []struct {
		name string
		file []byte
		is   error
		says string
	}{
		{"empty", nil, capture.ErrNotCapture, "packetwalk capture"},
		{"text", []byte("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"), capture.ErrNotCapture, "gzip"},
		{"gzip only", whole[:3], capture.ErrNotCapture, ""},
		{"another archive", archive(t, entry{name: "README", data: "hello"}), capture.ErrNotCapture, "README"},
		{"another's manifest", archive(t, entry{name: "manifest.json", data: `[{"Config":"x.json"}]`}), capture.ErrNotCapture, "another program"},
		{"newer", archive(t, manifestOf(7, "node/n1", "ip-link.json", 2)), capture.ErrVersion, "version 7, and this packetwalk reads version 2"},
		{"older", archive(t, manifestOf(1, "node/n1", "ip-link.json", 2)), capture.ErrVersion, "version 1, and this packetwalk reads version 2"},
		{"newer and changed", archive(t, entry{name: "manifest.json", data: `{"format":"packetwalk-capture","version":3,"hosts":{"n":1}}`}),
			capture.ErrVersion, ""},
		{"no version", archive(t, entry{name: "manifest.json", data: `{"format":"packetwalk-capture"}`}), capture.ErrDamaged, "no version 0"},
		{"half", whole[:len(whole)/2], capture.ErrDamaged, "too early"},
		{"without its end", whole[:len(whole)-9], capture.ErrDamaged, ""},
		{"link", archive(t, entry{"manifest.json", "/etc/passwd", tar.TypeSymlink}), capture.ErrDamaged, "no plain file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := capture.Read(bytes.NewReader(tt.file), int64(len(tt.file)))
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %v that says %q", err, tt.is, tt.says)
			}
		})
	}
}

// TestWriteRefusesWhatReadRefuses checks that no capture is written that Read refuses.
func TestWriteRefusesWhatReadRefuses(t *testing.T) {
	for _, name := range []string{"node/a b", "node/a\nb", "pod/../x", "netns/", ""} {
		c := small()
		c.Hosts[0].Name = name
		_, err := capture.Take(t.Context(), c.Origin(), io.Discard, c.Head)
		if err == nil || !strings.Contains(err.Error(), "no name of a host") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestOpenNamesTheFile(t *testing.T) {
	path := t.TempDir() + "/x.pwcap.tar.gz"
	if _, err := capture.Open(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open what is not there: %v", err)
	}
	if err := os.WriteFile(path, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := capture.Open(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v does not name %s", err, path)
	}
}
