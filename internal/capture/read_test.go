package capture_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/testing/capturetest"
)

// TestReadIsBounded shows that a small file that expands is refused before it takes memory. What is allocated is measured as it adds up.
func TestReadIsBounded(t *testing.T) {
	// padding hardly shrinks when it is compressed, so that the rest may expand.
	random := rand.NewChaCha8([32]byte{})
	padding := make([]byte, 100_000)
	_, _ = random.Read(padding)
	padded := func(list string) string { return fmt.Sprintf(`{"x":"%x",%s}`, padding, list) }
	many := func(element string, bytes int) string {
		return strings.TrimSuffix(strings.Repeat(element+",", bytes/(len(element)+1)), ",")
	}
	links := fmt.Sprintf(`[{"x":"%x"},%s]`, padding, many("{}", 4500000))
	for _, tt := range []struct {
		name string
		file []byte
		most int // megabytes
		says string
	}{
		{"version 1", archive(t, manifestOf(1, "node/n1", "ip-link.json", 64<<20),
			entry{name: "hosts/node/n1/ip-link.json", data: strings.Repeat("\x00", 64<<20)}), 64, "version 1, and this packetwalk reads version 2"},
		{"manifest", archive(t, entry{name: "manifest.json", data: `{"format":"packetwalk-capture","version":2,"x":[` + many(`""`, 4500000) + `]}`}), 64, ""},
		{"tar headers", headers(t, 64), 64, ""},
		{"hosts", assemble(t, `{}`, "x", "", padded(`"hosts":[`+many("{}", 4500000)+`]`)), 64, "are more than a capture may have"},
		{"notes", assemble(t, `{}`, "x", "", padded(`"notes":[`+many(`""`, 4500000)+`]`)), 64, "are more than a capture may have"},
		{"files of a host", assemble(t, padded(`"name":"node/n","files":[`+many("{}", 4500000)+`]`), "x", "", ""), 64, "are more than a capture may have"},
		{"links", assemble(t, fmt.Sprintf(`{"name":"node/n","files":[{"file":"ip-link.json","bytes":%d}]}`, len(links)),
			"hosts/node/n/ip-link.json", links, ""), 64, "are more than a capture may have"},
		{"text", assemble(t, `{"name":"node/n","files":[{"file":"ipset.txt","bytes":67108864}]}`, "hosts/node/n/ipset.txt",
			strings.Repeat("\x00", 64<<20), ""), 64, "are refused"},
		{"objects", withList(t, "pods.json", padded(`"items":[`+many("{}", 4500000)+`]`)), 64, "are more than a capture may have"},
		{"many objects", withList(t, "pods.json", padded(`"items":[`+many(`{"a": 12345}`, 4500000)+`]`)), 320, "more than 300000 objects"},
		{"endpoints", withList(t, "endpointslices.json", padded(`"items":[{"endpoints":[`+many("{}", 4500000)+`]}]`)), 64, "are more than a capture may have"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if len(tt.file) > 700_000 {
				t.Fatalf("the file has %d bytes, so it does not expand", len(tt.file))
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := load(tt.file)
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took>>20 > uint64(tt.most) {
				t.Errorf("a file of %d bytes takes %d MB", len(tt.file), took>>20)
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want one that says %q", err, tt.says)
			}
		})
	}
}

// load reads all of a capture as a walk does, and returns the first error.
func load(file []byte) error {
	f, err := capture.Read(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return err
	}
	s := capture.NewSource(f.Origin())
	for _, name := range s.Names() {
		h, err := s.Host(name)
		if err != nil {
			return err
		}
		for part, why := range h.Unread {
			if !strings.Contains(why, "not in the capture") {
				return fmt.Errorf("%s: %s", part, why)
			}
		}
	}
	s.Objects()
	return s.ObjectsError()
}

// headers makes an archive of nothing but a number of extended headers of a megabyte each.
func headers(t *testing.T, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	pack := tar.NewWriter(&b)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: "manifest.json", Format: tar.FormatPAX, PAXRecords: map[string]string{"P.x": strings.Repeat("x", 1<<20-100)}}
	if err := pack.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	extended := b.Bytes()[:b.Len()-512]
	return packed(t, bytes.Repeat(extended, n))
}

func assemble(t *testing.T, host, path, data, index string) []byte {
	t.Helper()
	file, err := capture.Assemble(host, path, data, index)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func withList(t *testing.T, file, list string) []byte {
	t.Helper()
	c := &capturetest.Content{Hosts: small().Hosts[1:], Lists: map[string][]byte{file: []byte(list)}}
	return c.Pack(t)
}
