package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// write makes an archive's file.
func write(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// docker is an archive with a manifest.json, and what more it has.
func docker(t testing.TB, manifest any, files ...file) []byte {
	t.Helper()
	text, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	return tarOf(t, append(files, regular("manifest.json", string(text)))...)
}

// oci is an archive with an index.json of one entry, and what more it has.
func oci(t testing.TB, d entry, files ...file) []byte {
	t.Helper()
	text, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []entry{d}})
	if err != nil {
		t.Fatal(err)
	}
	return tarOf(t, append(files, regular(indexFile, string(text)))...)
}

// blobOf is a file of a layout, and what describes it.
func blobOf(t testing.TB, kind types.MediaType, body string) (entry, file) {
	t.Helper()
	h, n, err := v1.SHA256(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return entry{MediaType: kind, Digest: h, Size: n}, regular(blobPath(h), body)
}

// TestHostileArchives: what an archive may say that is not so, or too much. Nothing of it stays.
func TestHostileArchives(t *testing.T) {
	whole, err := os.ReadFile(saveDocker(t, sample(t), "app:1"))
	if err != nil {
		t.Fatal(err)
	}
	layout, err := os.ReadFile(pack(t, saveLayout(t, sample(t), "app:1")))
	if err != nil {
		t.Fatal(err)
	}
	zeros := strings.Repeat("0", 64)
	config := regular("c.json", `{"os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:`+zeros+`"]}}`)
	one := func(layers ...string) []savedImage { return []savedImage{{"c.json", []string{"a:1"}, layers}} }
	layer := regular("l.tar", string(tarOf(t, regular("f", ""))))
	artifact, artifactFile := blobOf(t, types.OCIManifestSchema1,
		`{"schemaVersion":2,"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json"}}`)
	listing, listingFile := blobOf(t, types.OCIImageIndex, `{"manifests":[]}`)
	big, bigFile := blobOf(t, types.OCIManifestSchema1, strings.Repeat(" ", 5<<20))
	foreign := artifact
	foreign.Size++
	for name, tt := range map[string]struct {
		data []byte
		err  string
	}{
		"empty":             {nil, "not an image archive"},
		"text":              {bytes.Repeat([]byte("text "), 1000), "not an image archive"},
		"other archive":     {tarOf(t, regular("README", "")), "neither index.json nor manifest.json"},
		"xz":                {[]byte("\xfd7zXZ\x00 and more"), "unxz"},
		"cut off":           {whole[:len(whole)/2], "ends in the middle"},
		"cut off layout":    {layout[:3*512+50], "ends in the middle"}, // two folders, a file's header and the start of the file
		"cut off at a file": {tarOf(t, regular("manifest.json", string(mustJSON(t, one("l.tar")))), config), `no file "l.tar"`},
		"no JSON":           {tarOf(t, regular("manifest.json", "{")), "manifest.json: unexpected end of JSON"},
		"no images":         {docker(t, []savedImage{}), "names none"},
		"no images, layout": {tarOf(t, regular(indexFile, "{}")), "names none"},
		"no config":         {docker(t, one("l.tar"), layer), `no file "c.json"`},
		"config outside":    {docker(t, []savedImage{{"../../../etc/hostname", nil, nil}}, layer), `no file "../../../etc/hostname"`},
		"no layers":         {docker(t, one(), config), "has no layers"},
		"more layers":       {docker(t, one("l.tar", "l.tar"), config, layer), "has 2 layers, and its configuration knows of 1"},
		"too many layers":   {docker(t, one(slices.Repeat([]string{"l.tar"}, 128)...), config, layer), "at most 127"},
		"wrong layer":       {docker(t, one("l.tar"), config, layer), "should be sha256:" + zeros},
		"wrong config": {docker(t, []savedImage{{zeros + ".json", nil, []string{"l.tar"}}}, regular(zeros+".json", "{}"), layer),
			"has other content"},
		"bad name":          {docker(t, []savedImage{{"c.json", []string{"\x1b[31m"}, []string{"l.tar"}}}, config, layer), "should be"},
		"link to itself":    {docker(t, one("l"), config, link(tar.TypeSymlink, "l", "l")), `no file "l"`},
		"links in a circle": {docker(t, one("x"), config, link(tar.TypeSymlink, "x", "y"), link(tar.TypeLink, "y", "x")), "no file"},
		"link outside":      {docker(t, one("l"), config, link(tar.TypeSymlink, "l", "../../../../etc/passwd")), "no file"},
		"digest of nothing": {tarOf(t, regular(indexFile, `{"manifests":[{"mediaType":"`+string(types.OCIManifestSchema1)+`"}]}`)),
			"not of sha256"},
		"blob missing":       {oci(t, artifact), "no file"},
		"blob wrong":         {oci(t, artifact, regular(artifactFile.Name, "other")), "has other content"},
		"blob's size wrong":  {oci(t, foreign, artifactFile), "has other content"},
		"no image":           {oci(t, artifact, artifactFile), "no image that runs"},
		"no image either":    {oci(t, entry{MediaType: "text/plain", Digest: artifact.Digest}), `type "text/plain"`},
		"schema 1":           {oci(t, entry{MediaType: types.DockerManifestSchema1, Digest: artifact.Digest}), "no image"},
		"index of none":      {oci(t, listing, listingFile), "has none for linux/"},
		"manifest too large": {oci(t, big, bigFile), "more than 4 MiB"},
		"index too large":    {tarOf(t, regular(indexFile, strings.Repeat(" ", 5<<20))), "more than 4 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			got, err := s.Load(t.Context(), write(t, tt.data))
			if err == nil || !strings.Contains(err.Error(), tt.err) || got != nil {
				t.Errorf("%v, %v, want %q", got, err, tt.err)
			}
			nothingIn(t, s)
		})
	}
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// nothingIn checks that a store is empty.
func nothingIn(t testing.TB, s *Store) {
	t.Helper()
	for _, dir := range []string{tmpDir, blobsDir} {
		if names, err := s.names(dir); len(names) > 0 || err != nil {
			t.Errorf("left in %s: %v, %v", dir, names, err)
		}
	}
}

// TestArchiveLimits: archives that are larger than anything that is read.
func TestArchiveLimits(t *testing.T) {
	many := make([]file, 30)
	for n := range many {
		many[n] = regular(fmt.Sprint("f", n), "")
	}
	layer, inLayer := blobOf(t, types.OCIUncompressedLayer, "x")
	config, inConfig := blobOf(t, types.OCIConfigJSON, fmt.Sprintf(`{"rootfs":{"diff_ids":[%q]}}`, layer.Digest))
	img, inImage := blobOf(t, types.OCIManifestSchema1, string(mustJSON(t, v1.Manifest{Config: config, Layers: []entry{layer}})))
	files := []file{inConfig, inLayer, inImage}
	nested := make([]entry, 20)
	for n := range nested {
		i := v1.IndexManifest{Manifests: []entry{img}, Annotations: map[string]string{"n": fmt.Sprint(n)}}
		var f file
		nested[n], f = blobOf(t, types.OCIImageIndex, string(mustJSON(t, i)))
		files = append(files, f)
	}
	tags := []savedImage{{Config: inConfig.Name, RepoTags: []string{"a:1", "a:2", "a:3", "a:4", "a:5"}, Layers: []string{inLayer.Name}}}
	for name, tt := range map[string]struct {
		path string
		err  string
	}{
		"large":     {write(t, tarOf(t, regular("f", strings.Repeat("x", 30000)))), "more than 20000 bytes"},
		"gzip bomb": {compress(t, write(t, tarOf(t, regular("f", strings.Repeat("x", 1<<20)))), true), "more than 20000 bytes"},
		"zstd bomb": {compress(t, write(t, tarOf(t, regular("f", strings.Repeat("x", 1<<20)))), false), "more than"},
		"sparse":    {write(t, sparse(t, 1<<40)), "more than 20000 bytes"},
		"entries":   {write(t, tarOf(t, many...)), "more than 25 entries"},
		"manifests": {write(t, tarOf(t, append(files, regular(indexFile, string(mustJSON(t, v1.IndexManifest{Manifests: nested}))))...)), "more than 10 manifests"},
		"images":    {write(t, tarOf(t, inConfig, inLayer, regular("manifest.json", string(mustJSON(t, tags))))), "more than 4 images"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			s.most.archive, s.most.entries, s.most.manifests, s.most.images = 20000, 25, 10, 4
			if _, err := s.Load(t.Context(), tt.path); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
			nothingIn(t, s)
		})
	}
}

// sparse is an archive with a file of that size, and hardly any content (PAX, GNU.sparse, version 1.0).
func sparse(t testing.TB, size int) []byte {
	t.Helper()
	var records string
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=s", fmt.Sprint("GNU.sparse.realsize=", size)} {
		records += fmt.Sprintf("%d %s\n", len(r)+4, r) // lengths of two digits
	}
	data := tarOf(t, regular("pax", records), regular("sparse", fmt.Sprintf("1\n%d\n0\n%s", size, strings.Repeat("\x00", 512))[:512]))
	data[156] = tar.TypeXHeader
	copy(data[148:156], "        ")
	sum := 0
	for _, b := range data[:512] {
		sum += int(b)
	}
	copy(data[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return data
}

// TestHostileDirectories: a layout on the disk leads nowhere else, and nothing in it is waited for.
func TestHostileDirectories(t *testing.T) {
	good := saveLayout(t, sample(t), "app:1")
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for name, tt := range map[string]struct {
		change func(blob string) error
		err    string
	}{
		"none":            {func(string) error { return nil }, ""},
		"link outside":    {func(p string) error { return os.Symlink(elsewhere, p) }, "escapes"},
		"link to a pipe":  {func(p string) error { return unix.Mkfifo(p, 0o600) }, "is no file"},
		"a folder":        {func(p string) error { return os.Mkdir(p, 0o700) }, "is"},
		"missing":         {func(string) error { return unix.ENOENT }, "no such file"},
		"other content":   {func(p string) error { return os.WriteFile(p, []byte("{}"), 0o600) }, "has other content"},
		"link in circles": {func(p string) error { return os.Symlink(filepath.Base(p), p) }, "too many"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "layout")
			if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
				t.Fatal(err)
			}
			digest, err := sample(t).Digest()
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, blobPath(digest))
			if tt.err != "" {
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(elsewhere, data, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				if err := tt.change(path); err != nil && !errors.Is(err, unix.ENOENT) {
					t.Fatal(err)
				}
			}
			s := newStore(t)
			_, err = s.Load(t.Context(), dir)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
			if tt.err != "" {
				nothingIn(t, s)
			}
		})
	}
}

// TestOldDocker: archives of older releases have a layer that several images share once, and links to it.
func TestOldDocker(t *testing.T) {
	body := string(tarOf(t, regular("f", "")))
	h, _, err := v1.SHA256(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	config := regular("c.json", `{"os":"linux","rootfs":{"type":"layers","diff_ids":["`+h.String()+`"]}}`)
	for name, l := range map[string]file{"symbolic": link(tar.TypeSymlink, "b/layer.tar", "../a/layer.tar"),
		"hard": link(tar.TypeLink, "b/layer.tar", "a/layer.tar")} {
		data := docker(t, []savedImage{{"c.json", []string{"x:1", "x:2"}, []string{"b/layer.tar"}}}, regular("a/layer.tar", body), l, config)
		got := mustLoad(t, newStore(t), write(t, data))
		if len(got) != 2 || got[0].Name != "x:1" || got[1].Name != "x:2" || got[0].Digest != got[1].Digest || got[0].Size != int64(len(body)) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// FuzzLoad: no archive writes outside of its store, or leaves anything half done.
func FuzzLoad(f *testing.F) {
	for _, path := range []string{saveDocker(f, sample(f), "a:1"), pack(f, saveLayout(f, sample(f), "b:1"))} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	body := string(tarOf(f, regular("d/.wh.f", ""), link(tar.TypeSymlink, "l", "/d"), regular("l/x", "y")))
	h, _, err := v1.SHA256(strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(docker(f, []savedImage{{"c", []string{"x"}, []string{"l"}}}, regular("l", body),
		regular("c", `{"rootfs":{"diff_ids":["`+h.String()+`"]}}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		s, err := Open(filepath.Join(dir, "store"))
		if err != nil {
			t.Fatal(err)
		}
		s.most = limits{store: 1 << 22, layers: 10, json: 1 << 16, archive: 1 << 22, entries: 1000, manifests: 20, images: 10}
		path := filepath.Join(dir, "archive")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := s.Load(t.Context(), path)
		if err != nil {
			nothingIn(t, s)
		}
		for _, img := range list {
			if _, err := s.Manifest(img.Digest); err != nil {
				t.Error(err)
			}
		}
		if left := leftovers(t, s); len(left) > 0 {
			t.Errorf("left %v", left)
		}
		if there, err := os.ReadDir(dir); err != nil || len(there) != 2 {
			t.Errorf("beside the store: %v, %v", there, err)
		}
	})
}
