package capture_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/testing/capturetest"
)

// FuzzReadMember packs what the fuzzer makes up for a member and the index, so that it need not find out about checksums.
func FuzzReadMember(f *testing.F) {
	const host = `{"name":"node/n","taken":"2026-01-02T03:04:05Z","files":[{"file":"ip-link.json","command":"ip","bytes":2}]}`
	const link = "hosts/node/n/ip-link.json"
	f.Add(host, link, "[]", "")
	f.Add(host, link, "[", "")
	f.Add(host, "hosts/node/m/ip-link.json", "[]", "")
	f.Add(`{"name":"node/m","files":[]}`, "x", "", "")
	f.Add(host, link, "[]", `{"manifest":{"at":0,"size":190,"bytes":1024,"sha256":"AA=="},"hosts":[{"name":"node/n","at":190,"size":9}],"kubernetes":[]}`)
	f.Add(host, link, "[]", `{"manifest":{"at":-5,"size":-9223372036854775808,"bytes":9223372036854775807},"hosts":[]}`)
	f.Fuzz(func(t *testing.T, host, path, data, index string) {
		file, err := capture.Assemble(host, path, data, index)
		if err != nil {
			return // no name that a tar can have
		}
		c, err := capturetest.Read(file)
		if err != nil {
			if !errors.Is(err, capture.ErrDamaged) {
				t.Fatalf("another error: %v", err)
			}
			return
		}
		if len(c.Hosts) == 0 {
			return
		}
		again, err := capturetest.Read(c.Pack(t))
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

// TestHostileMembers: an index or a host that says what is not so is refused.
func TestHostileMembers(t *testing.T) {
	const link = "hosts/node/n/ip-link.json"
	host := func(files string) string { return `{"name":"node/n","files":[` + files + `]}` }
	for what, tt := range map[string]struct{ host, path, data, index, says string }{
		"another host":       {`{"name":"node/m","files":[]}`, link, "[]", "", "another host's"},
		"a file that climbs": {host(`{"file":"../x","bytes":2}`), link, "[]", "", "invalid file name"},
		"a file untold of":   {host(""), link, "[]", "", "not listed"},
		"an absolute path":   {host(`{"file":"ip-link.json","bytes":2}`), "/etc/passwd", "[]", "", `"/etc/passwd"`},
		"a file twice":       {host(`{"file":"ip-link.json","bytes":2}`), "hosts/node/n/host.json", "{}", "", "not listed"},
		"a longer file":      {host(`{"file":"ip-link.json","bytes":1}`), link, "[]", "", "2 bytes, but"},
		"a file left out":    {host(`{"file":"ip-link.json","bytes":2},{"file":"nft.json","bytes":2}`), link, "[]", "", "missing"},
		"no JSON":            {host(""), link, "", "{", "index.json"},
		"overlap":            {host(""), link, "", `{"manifest":{"at":0,"size":1},"hosts":[{"name":"node/n","at":0,"size":1}]}`, "said to be at 0"},
		"a gap":              {host(""), link, "", `{"manifest":{"at":0,"size":1},"hosts":[{"name":"node/n","at":2,"size":1}]}`, "said to be at 2"},
		"not all":            {host(""), link, "", `{"manifest":{"at":0,"size":1},"hosts":[]}`, "nothing listed for byte 1"},
		"beyond the end":     {host(""), link, "", `{"manifest":{"at":0,"size":99999999},"hosts":[]}`, "said to be at 0"},
		"a host twice": {host(""), link, "", `{"manifest":{"at":0,"size":1},"hosts":[{"name":"node/n","at":1,"size":1},{"name":"node/n","at":2,"size":1}]}`,
			"stands there twice"},
		"a host that climbs": {host(""), link, "", `{"manifest":{"at":0,"size":1},"hosts":[{"name":"../n","at":1,"size":1}]}`, "no name of a host"},
	} {
		file, err := capture.Assemble(tt.host, tt.path, tt.data, tt.index)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := capturetest.Read(file); !errors.Is(err, capture.ErrDamaged) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want one that says %q", what, err, tt.says)
		}
	}
}

// FuzzReadFile gives the reader any bytes at all.
func FuzzReadFile(f *testing.F) {
	f.Add(small().Pack(f))
	f.Fuzz(func(_ *testing.T, file []byte) {
		if c, err := capture.Read(bytes.NewReader(file), int64(len(file))); err == nil {
			_, _ = capturetest.Of(c)
		}
	})
}

// packed returns data in a gzip file.
func packed(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	if _, err := zip.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
