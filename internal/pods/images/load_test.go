package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"packetwalk.dev/internal/testing/kerneltest"
)

// sample returns an image that says something of everything.
func sample(t testing.TB) v1.Image {
	return imageOf(t, func(c *v1.ConfigFile) {
		c.Config = v1.Config{Entrypoint: []string{"/app"}, Cmd: []string{"serve"}, Env: []string{"A=1"}, User: "7:8", WorkingDir: "/srv",
			StopSignal: "SIGINT", Volumes: map[string]struct{}{"/b": {}, "/a": {}},
			ExposedPorts: map[string]struct{}{"80/tcp": {}, "53/udp": {}, "443": {}}}
	}, tarOf(t, regular("app", "program")), tarOf(t, regular("etc/conf", "text")))
}

var sampleConfig = Config{Entrypoint: []string{"/app"}, Cmd: []string{"serve"}, Env: []string{"A=1"}, User: "7:8", WorkingDir: "/srv",
	StopSignal: "SIGINT", Volumes: []string{"/a", "/b"}, Ports: []string{"443/tcp", "53/udp", "80/tcp"}}

// compress rewrites a file compressed.
func compress(t testing.TB, path string, zipped bool) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if zipped {
		w := gzip.NewWriter(&b)
		_, err = w.Write(data)
		err = errors.Join(err, w.Close())
	} else {
		var w *zstd.Encoder
		w, err = zstd.NewWriter(&b)
		data = w.EncodeAll(data, nil)
		b.Write(data)
	}
	if err == nil {
		err = os.WriteFile(path, b.Bytes(), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFormats: an image is the same from whatever it comes in.
func TestFormats(t *testing.T) {
	kerneltest.NeedRoot(t)
	img := sample(t)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	docker := saveDocker(t, img, "docker.io/library/app:1")
	dir := saveLayout(t, img, "docker.io/library/app:1")
	for name, tt := range map[string]struct {
		path   string
		digest string // "" where the archive has no manifest
	}{
		"docker":            {docker, ""},
		"docker gzip":       {compress(t, saveDocker(t, img, "app:1"), true), ""},
		"layout":            {dir, digest.String()},
		"OCI archive":       {pack(t, dir), digest.String()},
		"OCI archive, gzip": {compress(t, pack(t, dir), true), digest.String()},
		"OCI archive, zstd": {compress(t, pack(t, dir), false), digest.String()},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			loaded := mustLoad(t, s, tt.path)
			if len(loaded) != 1 || loaded[0].Name != "app:1" || tt.digest != "" && loaded[0].Digest != tt.digest {
				t.Fatalf("%+v, want app:1 with %s", loaded, tt.digest)
			}
			if listed, err := s.List(t.Context()); err != nil || cmp.Diff(loaded, listed) != "" {
				t.Errorf("listed: %v %s", err, cmp.Diff(loaded, listed))
			}
			got, layers := unpack(t, s, "app:1")
			if d := cmp.Diff(sampleConfig, got.Config); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(loaded[0], got); d != "" {
				t.Error(d)
			}
			for n, want := range []string{"app", "etc/conf"} {
				if _, err := os.Stat(filepath.Join(layers[n], want)); err != nil {
					t.Error(err)
				}
			}
			for _, ref := range []string{"app:1", "docker.io/library/app:1", got.Digest, got.Digest[:19], "app@" + got.Digest} {
				if again, err := find(s, ref); err != nil || again.Digest != got.Digest {
					t.Errorf("%s: %v", ref, err)
				}
			}
			for _, ref := range []string{"app", "app:2", "other/app:1", "sha256:" + strings.Repeat("0", 64)} {
				if _, err := find(s, ref); !errors.Is(err, ErrNotFound) {
					t.Errorf("%s: %v", ref, err)
				}
			}
			if left := leftovers(t, s); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestPipe: what docker save writes can be read as it comes.
func TestPipe(t *testing.T) {
	data, err := os.ReadFile(saveDocker(t, sample(t), "app:1"))
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		_, _ = w.Write(data)
		w.Close()
	}()
	if got := mustLoad(t, newStore(t), "/proc/self/fd/"+strconv.Itoa(int(r.Fd()))); len(got) != 1 || got[0].Name != "app:1" {
		t.Errorf("%+v", got)
	}
}

// TestStuckPipe: a writer that says nothing is not waited for when the context ends.
func TestStuckPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := s.Load(ctx, "/proc/self/fd/"+strconv.Itoa(int(r.Fd())))
		ended <- err
	}()
	cancel()
	if err := <-ended; err == nil {
		t.Error("loaded")
	}
}

// platform returns an image for another machine.
func platform(t testing.TB, p v1.Platform) mutate.IndexAddendum {
	img := imageOf(t, func(c *v1.ConfigFile) { c.OS, c.Architecture, c.Variant = p.OS, p.Architecture, p.Variant },
		tarOf(t, regular("for", p.String())))
	return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &p}}
}

// TestPlatforms: of an index the image for this machine is taken, and found by the index's digest, too.
func TestPlatforms(t *testing.T) {
	other, another := v1.Platform{OS: "linux", Architecture: "s390x"}, v1.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}
	unknown := v1.Platform{OS: "unknown", Architecture: "unknown"}
	all := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.DockerManifestList), platform(t, other), platform(t, unknown),
		platform(t, here), platform(t, another))
	digest, err := all.Digest()
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	loaded := mustLoad(t, s, saveLayout(t, all, "ghcr.io/a/b:v1"))
	if len(loaded) != 1 || loaded[0].Name != "ghcr.io/a/b:v1" {
		t.Fatalf("%+v", loaded)
	}
	i, err := s.readIndex()
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"ghcr.io/a/b@" + digest.String(), digest.String()} {
		if at, err := i.find(ref); err != nil || len(at) != 1 {
			t.Errorf("%s: %v, %v", ref, at, err)
		}
	}
	none := mutate.AppendManifests(empty.Index, platform(t, other), platform(t, another), platform(t, unknown))
	both := "is for linux/arm/v7, linux/s390x; this machine is linux/" + runtime.GOARCH
	alone := platform(t, other).Add.(v1.Image)
	for name, path := range map[string]string{"index": saveLayout(t, none, "a:1"), "image": saveLayout(t, alone, "a:1"),
		"docker": saveDocker(t, alone, "a:1")} {
		want := both
		if name != "index" {
			want = "is for linux/s390x; this machine is linux/" + runtime.GOARCH
		}
		if _, err := s.Load(t.Context(), path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// TestNames: how names are shown, and what goes by them.
func TestNames(t *testing.T) {
	hash := strings.Repeat("0", 64)
	for ref, want := range map[string]string{
		"nginx": "nginx:latest", "docker.io/library/nginx:1.27": "nginx:1.27", "index.docker.io/library/nginx": "nginx:latest",
		"docker.io/user/app:v1": "user/app:v1", "registry.k8s.io/pause:3.10": "registry.k8s.io/pause:3.10",
		"localhost:5000/a/b": "localhost:5000/a/b:latest", "nginx@sha256:" + hash: "nginx@sha256:" + hash,
		"nginx:1@sha256:" + hash: "nginx@sha256:" + hash, "docker.io/library/a/b": "library/a/b:latest",
		"": "", "UPPER": "", "a b": "", "a\x1b[31m": "", "../x": "", "a/../b": "", "a//b": "", "nginx@sha256:1": "",
	} {
		got, err := normalize(ref)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", ref, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: the error has a control character", ref)
		}
	}
	for _, tt := range []struct{ file, tag, want string }{
		{"/x/shop.tar.gz", "", "shop:latest"}, {"shop-1.2.tar", "v1", "shop-1.2:v1"}, {"My App.tar", "", ""}, {"Shop.oci", "", "shop:latest"},
	} {
		if got := fileName(tt.file, tt.tag); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.file, got, tt.want)
		}
	}
}

// TestUnnamed: an archive's only image is named after the file; a layout's reference may be a tag.
func TestUnnamed(t *testing.T) {
	for ref, want := range map[string]string{"": "saved:latest", "v2": "saved:v2", "nginx:1.27": "nginx:1.27",
		"ghcr.io/a/b": "ghcr.io/a/b:latest"} {
		if got := mustLoad(t, newStore(t), saveLayout(t, sample(t), ref)); len(got) != 1 || got[0].Name != want {
			t.Errorf("%q: %+v, want %s", ref, got, want)
		}
	}
	if _, err := newStore(t).Load(t.Context(), saveLayout(t, sample(t), "A:B")); err == nil {
		t.Error("a name that is none was taken")
	}
}

// TestReplaced shows that a name moves to the image that was loaded last, and that blobs without an image are removed.
func TestReplaced(t *testing.T) {
	kerneltest.NeedRoot(t)
	s := newStore(t)
	for _, text := range []string{"one", "two"} {
		mustLoad(t, s, saveDocker(t, imageOf(t, nil, tarOf(t, regular("same", "")), tarOf(t, regular("f", text))), "app:1"))
		_, layers := unpack(t, s, "app:1")
		if got, err := os.ReadFile(filepath.Join(layers[1], "f")); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	if blobs, err := s.names(blobsDir); err != nil || len(blobs) != 4 {
		t.Errorf("%d blobs, %v", len(blobs), err)
	}
}

// TestSeenByOthers: what one changes in a store the others see, and what they do with what they see is theirs.
func TestSeenByOthers(t *testing.T) {
	s := newStore(t)
	other, err := Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	file := saveDocker(t, imageOf(t, nil, tarOf(t, regular("f", "1"))), "a:1")
	for range 3 {
		if _, err := other.Manifest("a:1"); !errors.Is(err, ErrNotFound) {
			t.Fatalf("before: %v", err)
		}
		mustLoad(t, s, file)
		i, err := other.readIndex()
		if err != nil || len(i.Manifests) != 1 {
			t.Fatalf("%+v, %v", i, err)
		}
		i.Manifests[0] = entry{}
		if _, err := other.Manifest("a:1"); err != nil {
			t.Fatalf("after: %v", err)
		}
		if err := s.Remove(t.Context(), "a:1"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRemove: blobs stay as long as an image has them.
func TestRemove(t *testing.T) {
	s := newStore(t)
	base := tarOf(t, regular("base", ""))
	mustLoad(t, s, saveDocker(t, imageOf(t, nil, base, tarOf(t, regular("f", "one"))), "one"))
	mustLoad(t, s, saveDocker(t, imageOf(t, nil, base, tarOf(t, regular("f", "two"))), "two"))
	one, err := find(s, "one")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		ref  string
		left int // blobs: a manifest, a configuration and two layers of an image
	}{{"", 7}, {"two", 4}, {one.Digest, 0}} {
		if tt.ref != "" {
			if err := s.Remove(t.Context(), tt.ref); err != nil {
				t.Fatal(err)
			}
		}
		if blobs, err := s.names(blobsDir); err != nil || len(blobs) != tt.left {
			t.Errorf("after rm %q: %d blobs, %v; want %d", tt.ref, len(blobs), err, tt.left)
		}
	}
	if err := s.Remove(t.Context(), "one"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
}

// write makes an archive's file.
func write(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// docker returns an archive with a manifest.json, and more files.
func docker(t testing.TB, manifest any, files ...file) []byte {
	t.Helper()
	text, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	return tarOf(t, append(files, regular("manifest.json", string(text)))...)
}

// oci returns an archive with an index.json of one entry, and more files.
func oci(t testing.TB, d entry, files ...file) []byte {
	t.Helper()
	text, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []entry{d}})
	if err != nil {
		t.Fatal(err)
	}
	return tarOf(t, append(files, regular(indexFile, string(text)))...)
}

// blobOf returns a file of a layout, and its descriptor.
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

// sparse returns an archive with a file of that size, and hardly any content (PAX, GNU.sparse, version 1.0).
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
