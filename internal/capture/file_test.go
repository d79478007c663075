package capture_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"packetwalk.dev/internal/capture"
)

const worldA = "testdata/world-a.pwcap.tar.gz"

func small() *capture.Capture {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &capture.Capture{
		Packetwalk: "v1", Taken: at, Tools: map[string]string{"ip": "iproute2-6.1.0"}, Notes: []string{"one note"},
		Hosts: []*capture.Raw{{
			Name: "node/n1", Taken: at, Kernel: "6.1.0", NetNS: 4026531840,
			Outputs: map[string]capture.Output{
				"ip-link.json":             {Command: "ip -d -j link show", Data: []byte(`[{"ifindex":1,"ifname":"lo","flags":["UP"],"mtu":65536}]`)},
				"nft.json":                 {Command: "nft -j -a list ruleset", Data: []byte{}, Error: "exit status 1: no"},
				"iptables-legacy-save.txt": {Skipped: "there are none"},
			},
		}, {Name: "pod/default/p", Taken: at, Outputs: map[string]capture.Output{}}},
		Lists: map[string][]byte{"nodes.json": []byte(`{"items":[{"metadata":{"name":"n1"}}]}`)},
	}
}

func packed(t testing.TB, c *capture.Capture) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRoundTrip(t *testing.T) {
	want := small()
	file := packed(t, want)
	got, err := capture.Read(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back (-written +read):\n%s", diff)
	}
	if !bytes.Equal(file, packed(t, got)) {
		t.Error("written again it is another file")
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

// manifestOf is a manifest with one host that has one file.
func manifestOf(version int, host, file string, bytes int) entry {
	return entry{name: "manifest.json", data: fmt.Sprintf(
		`{"format":"packetwalk-capture","version":%d,"hosts":[{"name":%q,"files":[{"file":%q,"bytes":%d}]}]}`, version, host, file, bytes)}
}

func TestReadErrors(t *testing.T) {
	whole := packed(t, small())
	link := entry{name: "hosts/node/n1/ip-link.json", data: "[]"}
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
		{"newer", archive(t, manifestOf(7, "node/n1", "ip-link.json", 2)), capture.ErrNewer, "version 7, and this packetwalk reads up to 1"},
		{"newer and changed", archive(t, entry{name: "manifest.json", data: `{"format":"packetwalk-capture","version":2,"hosts":{"n":1}}`}),
			capture.ErrNewer, ""},
		{"no version", archive(t, entry{name: "manifest.json", data: `{"format":"packetwalk-capture"}`}), capture.ErrDamaged, "no version 0"},
		{"half", whole[:len(whole)/2], capture.ErrDamaged, "too early"},
		{"without its end", whole[:len(whole)-9], capture.ErrDamaged, ""},
		{"file left out", archive(t, manifestOf(1, "node/n1", "ip-link.json", 2)), capture.ErrDamaged, "it is not there"},
		{"shorter file", archive(t, manifestOf(1, "node/n1", "ip-link.json", 9), link), capture.ErrDamaged, "2 bytes"},
		{"file twice", archive(t, manifestOf(1, "node/n1", "ip-link.json", 2), link, link), capture.ErrDamaged, "does not tell of it"},
		{"file that nobody told of", archive(t, manifestOf(1, "node/n1", "ip-link.json", 2), link, entry{name: "hosts/node/n2/x", data: ""}),
			capture.ErrDamaged, "does not tell of it"},
		{"absolute path", archive(t, manifestOf(1, "node/n1", "ip-link.json", 2), link, entry{name: "/etc/passwd", data: "x"}),
			capture.ErrDamaged, "/etc/passwd"},
		{"host that climbs", archive(t, manifestOf(1, "../../etc", "ip-link.json", 2)), capture.ErrDamaged, "no name of a host"},
		{"file that climbs", archive(t, manifestOf(1, "node/n1", "../x", 2)), capture.ErrDamaged, "no name of a file"},
		{"link", archive(t, manifestOf(1, "node/n1", "ip-link.json", 2), entry{link.name, "/etc/passwd", tar.TypeSymlink}), capture.ErrDamaged,
			"no plain file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := capture.Read(bytes.NewReader(tt.file))
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want %v that says %q", err, tt.is, tt.says)
			}
		})
	}
}

// TestReadIsBounded: a small file that unpacks to much is refused before it is unpacked, and one whose parts add up, when they do.
// TestWriteRefusesWhatReadRefuses: no capture is written that nobody can read.
func TestWriteRefusesWhatReadRefuses(t *testing.T) {
	for _, name := range []string{"node/a b", "node/a\nb", "pod/../x", "netns/", ""} {
		c := small()
		c.Hosts[0].Name = name
		if err := c.Write(io.Discard); err == nil || !strings.Contains(err.Error(), "no name of a host") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestReadIsBounded(t *testing.T) {
	zeros := entry{name: "hosts/node/n1/ip-link.json", data: strings.Repeat("\x00", 1<<20)}
	bomb := archive(t, manifestOf(1, "node/n1", "ip-link.json", 1<<20), zeros)
	for _, tt := range []struct {
		name        string
		files       int
		file, total int64
		fails       bool
	}{
		{"one file", 10, 1 << 19, 1 << 30, true},
		{"the sum", 10, 1 << 20, 1 << 20, true},
		{"how many", 0, 1 << 20, 1 << 30, true},
		{"enough", 10, 1 << 20, 1 << 21, false},
	} {
		_, err := capture.ReadWithin(bytes.NewReader(bomb), tt.files, tt.file, tt.total)
		if errors.Is(err, capture.ErrDamaged) != tt.fails || !tt.fails && err != nil {
			t.Errorf("%s: error %v, want one: %v", tt.name, err, tt.fails)
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

// FuzzRead packs what the fuzzer makes up, so that it need not find out about checksums.
func FuzzRead(f *testing.F) {
	f.Add(manifestOf(1, "node/n1", "ip-link.json", 2).data, "hosts/node/n1/ip-link.json", "[]")
	f.Add(manifestOf(1, "../x", "y", 0).data, "hosts/../x/y", "")
	f.Add(manifestOf(2, "fabric", "nft.json", 3).data, "hosts/fabric/nft.json", "{}\n")
	f.Add(`{"format":"packetwalk-capture","version":1,"kubernetes":[{"file":"pods.json","bytes":12}],"notes":["n"],"tools":{"ip":"1"}}`,
		"kubernetes/pods.json", `{"items":[]}`)
	f.Fuzz(func(t *testing.T, manifest, name, data string) {
		var b bytes.Buffer
		pack := tar.NewWriter(&b)
		for _, e := range []entry{{name: "manifest.json", data: manifest}, {name: name, data: data}} {
			if pack.WriteHeader(&tar.Header{Name: e.name, Size: int64(len(e.data)), Typeflag: tar.TypeReg}) != nil {
				return // no name that a tar can have
			}
			if _, err := pack.Write([]byte(e.data)); err != nil {
				t.Fatal(err)
			}
		}
		if err := pack.Close(); err != nil {
			t.Fatal(err)
		}
		c, err := capture.Read(bytes.NewReader(stored(t, b.Bytes())))
		if err != nil {
			return
		}
		again, err := capture.Read(bytes.NewReader(packed(t, c)))
		if err != nil {
			t.Fatalf("what was read and written cannot be read: %v", err)
		}
		if diff := cmp.Diff(c, again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		source := capture.NewSource(c.Origin())
		for _, name := range source.Names() {
			if _, err := source.Host(name); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzReadFile gives the reader any bytes at all.
func FuzzReadFile(f *testing.F) {
	f.Add(packed(f, small()))
	f.Fuzz(func(_ *testing.T, file []byte) {
		_, _ = capture.ReadWithin(bytes.NewReader(file), 100, 1<<16, 1<<18)
	})
}

// stored is data in a gzip file, not compressed.
func stored(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.NoCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := zip.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
