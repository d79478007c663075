package images

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// capability is CAP_NET_RAW, effective and permitted (capabilities(7), VFS_CAP_REVISION_2).
const capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// TestRoundTrip: what containers see of the layers, by an overlay over them, is what was put in.
func TestRoundTrip(t *testing.T) {
	kerneltest.NeedRoot(t)
	suid := regular("bin/su", "program")
	suid.Mode, suid.Uid, suid.Gid = 0o4755, 5, 6
	ping := regular("bin/ping", "raw")
	ping.PAXRecords = map[string]string{attributes + "security.capability": capability, attributes + "trusted.overlay.opaque": "y",
		attributes + "user.note": "kept", attributes + "user.overlay.opaque": "y", attributes + "security.selinux": "x"}
	ping.Mode = 0o755
	owned := folder("home/u", 0o700)
	owned.Uid, owned.Gid = 1000, 1000
	fifo := link(tar.TypeFifo, "run/pipe", "")
	fifo.Mode = 0o622
	below := tarOf(t, folder("./", 0o755), folder("bin", 0o755), suid, ping, link(tar.TypeSymlink, "sbin", "/bin"), folder("tmp", 0o1777),
		folder("home", 0o755), owned, regular("home/u/f", "of u"), folder("run", 0o755), fifo, link(tar.TypeLink, "bin/doas", "bin/su"),
		regular("etc/gone", ""), regular("etc/kept", "kept"), regular("etc/changed", "old"), regular("old/a", ""), regular("old/b/c", ""),
		regular("replaced/a", ""), regular("again/a", ""), regular("file", "was a file"), regular("both/a", ""),
		link(tar.TypeChar, "dev/null", ""), link(tar.TypeBlock, "dev/sda", ""))
	above := tarOf(t, regular("etc/.wh.gone", ""), regular("etc/changed", "new"), regular("old/.wh..wh..opq", ""), regular("old/new", ""),
		regular(".wh.replaced", ""), regular("replaced/b", ""), // the layer removes it and has one of that name
		regular("again/b", ""), regular(".wh.again", ""), // in the other order
		folder("file", 0o755), regular("file/in", ""),
		regular("home/u/g", "new"), regular("tmp/x", ""), // directories that it does not mention are as below
		regular("both/b", ""), regular(".wh..wh.plnk/1.2", ""), regular("bin/.wh.absent", ""))
	s := newStore(t)
	mustLoad(t, s, saveLayout(t, imageOf(t, nil, below, above), "a:1"))
	img, err := s.Image(t.Context(), "a:1")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	got := map[string]string{}
	privately(t, func() {
		at := t.TempDir()
		options := "lowerdir=" + img.Layers[1] + ":" + img.Layers[0]
		if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, options); err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = unix.Unmount(at, 0) }()
		names = namesBelow(t, at)
		for _, n := range names {
			got[n] = describe(t, filepath.Join(at, n))
		}
	})
	const file, dir = 1_700_000_000, 1_600_000_000
	want := map[string]string{
		"bin": fmt.Sprint("drwxr-xr-x 0:0 ", dir), "bin/su": fmt.Sprint("urwxr-xr-x 5:6 ", file, " program"),
		"bin/doas": fmt.Sprint("urwxr-xr-x 5:6 ", file, " program"),
		"bin/ping": fmt.Sprintf("-rwxr-xr-x 0:0 %d raw security.capability=%q user.note=%q", file, capability, "kept"),
		"sbin":     "L 0:0 1500000000 /bin", "tmp": fmt.Sprint("dtrwxrwxrwx 0:0 ", dir), "tmp/x": fmt.Sprint("-rw-r--r-- 0:0 ", file, " "),
		"home": fmt.Sprint("drwxr-xr-x 0:0 ", dir), "home/u": fmt.Sprint("drwx------ 1000:1000 ", dir),
		"home/u/f": fmt.Sprint("-rw-r--r-- 0:0 ", file, " of u"), "home/u/g": fmt.Sprint("-rw-r--r-- 0:0 ", file, " new"),
		"run": fmt.Sprint("drwxr-xr-x 0:0 ", dir), "run/pipe": "prw--w--w- 0:0 1500000000",
		"etc": "drwxr-xr-x 0:0 0", "etc/kept": fmt.Sprint("-rw-r--r-- 0:0 ", file, " kept"),
		"etc/changed": fmt.Sprint("-rw-r--r-- 0:0 ", file, " new"),
		"old":         "drwxr-xr-x 0:0 0", "old/new": fmt.Sprint("-rw-r--r-- 0:0 ", file, " "),
		"replaced": "drwxr-xr-x 0:0 0", "replaced/b": fmt.Sprint("-rw-r--r-- 0:0 ", file, " "),
		"again": "drwxr-xr-x 0:0 0", "again/b": fmt.Sprint("-rw-r--r-- 0:0 ", file, " "),
		"file": fmt.Sprint("drwxr-xr-x 0:0 ", dir), "file/in": fmt.Sprint("-rw-r--r-- 0:0 ", file, " "),
		"both": "drwxr-xr-x 0:0 0", "both/a": fmt.Sprint("-rw-r--r-- 0:0 ", file, " "), "both/b": fmt.Sprint("-rw-r--r-- 0:0 ", file, " "),
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	su, doas := filepath.Join(img.Layers[0], "bin/su"), filepath.Join(img.Layers[0], "bin/doas")
	a, err := os.Stat(su)
	b, err2 := os.Stat(doas)
	if err := errors.Join(err, err2); err != nil || !os.SameFile(a, b) {
		t.Errorf("one file with two names became two: %v", err)
	}
}

// describe is a file as a test compares it.
func describe(t testing.TB, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	var st unix.Stat_t
	if err := errors.Join(err, unix.Lstat(path, &st)); err != nil {
		t.Error(err)
		return ""
	}
	text := fmt.Sprintf("%v %d:%d %d", info.Mode(), st.Uid, st.Gid, st.Mtim.Sec)
	switch {
	case info.Mode().IsRegular():
		body, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		text += " " + string(body)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprintf("L %d:%d %d %s", st.Uid, st.Gid, st.Mtim.Sec, target)
	}
	list := make([]byte, 4096)
	n, err := unix.Llistxattr(path, list)
	if err != nil {
		t.Error(err)
		return text
	}
	keys := strings.FieldsFunc(string(list[:n]), func(r rune) bool { return r == 0 })
	slices.Sort(keys)
	for _, key := range keys {
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(path, key, value)
		if err != nil {
			t.Error(err)
			continue
		}
		text += fmt.Sprintf(" %s=%q", key, value[:n])
	}
	return text
}

// TestHidesAll: a layer that hides everything below it is the lowest; overlayfs itself does not heed this of a layer's topmost directory.
func TestHidesAll(t *testing.T) {
	kerneltest.NeedRoot(t)
	s := newStore(t)
	mustLoad(t, s, saveDocker(t, imageOf(t, nil, tarOf(t, regular("below", "")), tarOf(t, regular(opaqueMarker, ""), regular("a", "")),
		tarOf(t, regular("b", ""))), "a:1"))
	img, err := s.Image(t.Context(), "a:1")
	if err != nil || len(img.Layers) != 2 {
		t.Fatalf("%v, %v", img.Layers, err)
	}
	if got := namesBelow(t, img.Layers[0]); !slices.Equal(got, []string{"a"}) {
		t.Errorf("%v", got)
	}
}

// TestHostileLayers: what a layer may say to get out of it, or to be more than it is.
func TestHostileLayers(t *testing.T) {
	kerneltest.NeedRoot(t)
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := describe(t, victim)
	owner := regular("f", "")
	owner.Uid = -1
	root := folder("/", 0o777)
	root.Uid = 5
	many := make([]file, 0, 60)
	for n := range 60 {
		many = append(many, regular(fmt.Sprint("f", n), ""))
	}
	huge := regular("huge", "")
	huge.Size = 1 << 40
	for name, tt := range map[string]struct {
		files []file
		raw   []byte
		err   string   // "" for none
		names []string // where there is no error
	}{
		"..":             {files: []file{regular("../../victim", "theirs")}, err: "leads out of the image"},
		".. inside":      {files: []file{regular("a/../../victim", "theirs")}, err: "leads out of the image"},
		"absolute":       {files: []file{regular(victim, "theirs")}, names: parents(victim)},
		"through a link": {files: []file{link(tar.TypeSymlink, "l", outside), regular("l/victim", "theirs")}, err: "not a directory"},
		"through a link up": {files: []file{link(tar.TypeSymlink, "l", "../../../../../../../.."), regular("l/tmp/f", "")},
			names: []string{"l", "tmp", "tmp/f"}},
		"through a link inside": {files: []file{folder("d", 0o755), link(tar.TypeSymlink, "l", "/d"), regular("l/f", "")},
			names: []string{"d", "d/f", "l"}},
		"over a link": {files: []file{link(tar.TypeSymlink, "l", victim), regular("l", "theirs")}, names: []string{"l"}},
		"over a link to a folder": {files: []file{link(tar.TypeSymlink, "l", outside), folder("l", 0o777), regular("l/victim", "x")},
			names: []string{"l", "l/victim"}},
		"whiteout through a link": {files: []file{link(tar.TypeSymlink, "l", outside), regular("l/.wh.victim", "")}, err: "not a directory"},
		"opaque through a link":   {files: []file{link(tar.TypeSymlink, "l", outside), regular("l/"+opaqueMarker, "")}, err: "not a directory"},
		"hard link outside":       {files: []file{link(tar.TypeLink, "h", victim), regular("h", "theirs")}, err: "no such file"},
		"hard link up":            {files: []file{link(tar.TypeLink, "h", "../../../../../../../.."+victim)}, err: "no such file"},
		"hard link through a link": {files: []file{link(tar.TypeSymlink, "l", outside), link(tar.TypeLink, "h", "l/victim")},
			err: "no such file"},
		"hard link to a link": {files: []file{link(tar.TypeSymlink, "l", victim), link(tar.TypeLink, "h", "l"), regular("h", "x")},
			names: []string{"h", "l"}},
		"hard link to a folder": {files: []file{folder("d", 0o755), link(tar.TypeLink, "h", "d")}, err: "not permitted"},
		"link to itself":        {files: []file{link(tar.TypeSymlink, "l", "l"), regular("l/f", "")}, err: "link"},
		"devices":               {files: []file{link(tar.TypeChar, "null", ""), link(tar.TypeBlock, "sda", "")}, names: nil},
		"whiteout of nothing":   {files: []file{regular("a/.wh.", "")}, err: "nothing that has a name"},
		"whiteout of ..":        {files: []file{regular("a/.wh...", "")}, err: "nothing that has a name"},
		"whiteout of .":         {files: []file{regular("a/.wh..", "")}, err: "nothing that has a name"},
		"a file as a folder":    {files: []file{regular("f", ""), regular("f/g", "")}, err: "not a directory"},
		"a folder becomes a file": {files: []file{regular("d/e/f", ""), regular("d/g", ""), regular("d", ""), regular("x/y", "")},
			names: []string{"d", "x", "x/y"}},
		"owner that is none": {files: []file{owner}, err: "is none"},
		"the root itself":    {files: []file{root, regular("f", "")}, names: []string{"f"}},
		"too many":           {files: many, err: "too many files"},
		"too many folders":   {files: []file{regular(strings.Repeat("d/", 60)+"f", "")}, err: "too many files"},
		"too large":          {raw: tarOf(t, regular("a", strings.Repeat("x", 2000)))[:1024], err: "too large"},
		"huge":               {raw: headerOf(t, huge), err: "too large"},
		"long names":         {files: []file{regular(strings.Repeat("n/", 1000)+"f", "")}, err: "names are too long"},
		"of no known kind":   {files: []file{link('Z', "z", "")}, err: "not known"},
		"cut off":            {raw: tarOf(t, regular("a", strings.Repeat("x", 900)))[:700], err: "ends in the middle"},
		"no archive":         {raw: bytes.Repeat([]byte("no archive"), 200), err: "invalid tar header"},
		"empty":              {raw: []byte{}, names: nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			s.most = limits{unpacked: 1500, files: 50, names: 4500, layers: 4, json: most.json, archive: most.archive,
				entries: 100, manifests: 10, images: 10}
			data := tt.raw
			if data == nil {
				data = tarOf(t, tt.files...)
			}
			mustLoad(t, s, saveDocker(t, imageOf(t, nil, data), "a:1"))
			img, err := s.Image(t.Context(), "a:1")
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("%v, want %q", err, tt.err)
				}
				if l, err := s.names(layersDir); len(l) > 0 || err != nil {
					t.Errorf("half unpacked: %v, %v", l, err)
				}
			} else if err != nil {
				t.Error(err)
			} else {
				if got := namesBelow(t, img.Layers[0]); !slices.Equal(got, tt.names) && len(got)+len(tt.names) > 0 {
					t.Errorf("unpacked %q, want %q", got, tt.names)
				}
				if got := describe(t, img.Layers[0]); !strings.HasPrefix(got, "drwxr-xr-x 0:0") {
					t.Errorf("its root is %s", got)
				}
			}
			if left := leftovers(t, s); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
			if after := describe(t, victim); after != before {
				t.Errorf("outside: %s, was %s", after, before)
			}
			if l, _ := os.ReadDir(outside); len(l) != 1 {
				t.Errorf("outside: %v", l)
			}
		})
	}
}

// parents are a path's elements, as WalkDir shows them.
func parents(path string) (list []string) {
	for p := strings.TrimPrefix(path, "/"); p != "."; p = filepath.Dir(p) {
		list = append([]string{p}, list...)
	}
	return list
}

// headerOf is an entry without its content.
func headerOf(t testing.TB, f file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	f.Typeflag = tar.TypeReg
	if err := w.WriteHeader(&f.Header); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestWrongContent: layers that are not what their digests say, or are cut off, are noticed; nothing stays of them.
func TestWrongContent(t *testing.T) {
	kerneltest.NeedRoot(t)
	good := imageOf(t, nil, tarOf(t, regular("a", strings.Repeat("content ", 200))))
	wrong := imageOf(t, func(c *v1.ConfigFile) { c.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64) }, tarOf(t, regular("a", "")))
	trailing := imageOf(t, nil, append(tarOf(t, regular("a", "")), "behind the end"...))
	for name, tt := range map[string]struct {
		img v1.Image
		err string
	}{
		"good": {good, ""}, "trailing": {trailing, ""}, "diff ID": {wrong, "should be sha256:0000"},
		"cut off gzip": {cutLayer(t, good), "ends in the middle"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			mustLoad(t, s, saveLayout(t, tt.img, "a:1"))
			_, err := s.Image(t.Context(), "a:1")
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
			layers, _ := s.names(layersDir)
			if left := leftovers(t, s); len(left) > 0 || tt.err != "" && len(layers) > 0 {
				t.Errorf("left: %v, layers %v", left, layers)
			}
		})
	}
}

// TestBudget: an image's layers count together, also those that were unpacked for another.
func TestBudget(t *testing.T) {
	kerneltest.NeedRoot(t)
	s := newStore(t)
	s.most.unpacked = 1500
	part := func(c string) []byte { return tarOf(t, regular(c, strings.Repeat(c, 1000))) }
	mustLoad(t, s, saveDocker(t, imageOf(t, nil, part("a")), "one"))
	mustLoad(t, s, saveDocker(t, imageOf(t, nil, part("a"), part("b")), "two"))
	if _, err := s.Image(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // trying again does not help
		if _, err := s.Image(t.Context(), "two"); err == nil || !strings.Contains(err.Error(), "too large") {
			t.Errorf("%v", err)
		}
	}
	if l, _ := s.names(layersDir); len(l) != 1 {
		t.Errorf("layers %v", l)
	}
}

// TestTimes: times that no file system has do no harm.
func TestTimes(t *testing.T) {
	kerneltest.NeedRoot(t)
	s := newStore(t)
	f, d := regular("d/f", ""), folder("d", 0o755)
	f.ModTime, d.ModTime = time.Unix(1<<60, 0), time.Unix(-1<<60, 0)
	mustLoad(t, s, saveDocker(t, imageOf(t, nil, tarOf(t, d, f)), "a:1"))
	if _, err := s.Image(t.Context(), "a:1"); err != nil {
		t.Error(err)
	}
}
