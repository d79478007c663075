package nodeimage

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/pods/deb"
)

// entries are a layer's, in their order: the name, the type, the mode, and a link's target or a file's content.
func entries(t *testing.T, archive []byte) (all []string) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || !h.ModTime.Equal(epoch) || len(h.PAXRecords) > 0 {
			t.Errorf("%s has an owner, a time or attributes: %+v", h.Name, h)
		}
		data, _ := io.ReadAll(r)
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %c %s %s%s", h.Name, h.Typeflag, h.FileInfo().Mode(), h.Linkname, data)))
	}
}

// TestWrite: entries are sorted, with the folders above them before them, and nothing of this machine.
func TestWrite(t *testing.T) {
	source := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(source, []byte("text"), 0o4711); err != nil {
		t.Fatal(err)
	}
	tree := Tree{"tmp": {Mode: fs.ModeDir | fs.ModeSticky | 0o777}, "bin": {Link: "usr/bin"}, "usr/bin/b": {Mode: 0o755, Source: source},
		"usr/bin/a": {Mode: 0o644, Data: []byte("data")}, "usr": {Mode: fs.ModeDir | 0o700}}
	var first, second bytes.Buffer
	if err := errors.Join(tree.write(t.Context(), &first), maps.Clone(tree).write(t.Context(), &second)); err != nil {
		t.Fatal(err)
	}
	want := []string{"bin 2 L--------- usr/bin", "tmp/ 5 dtrwxrwxrwx", "usr/ 5 drwx------", "usr/bin/ 5 drwxr-xr-x", "usr/bin/a 0 -rw-r--r-- data",
		"usr/bin/b 0 -rwxr-xr-x text"}
	if diff := cmp.Diff(want, entries(t, first.Bytes())); diff != "" {
		t.Error(diff)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same tree makes two layers")
	}
}

// TestWriteRefused: what a layer must not have, and what cannot be read.
func TestWriteRefused(t *testing.T) {
	for name, tree := range map[string]Tree{
		"above":               {"../a": {}},
		"absolute":            {"/a": {}},
		"the top":             {".": {Mode: fs.ModeDir}},
		"a whiteout":          {"etc/.wh.passwd": {}},
		"an opaque folder":    {".wh..wh..opq": {}},
		"below a link":        {"a": {Link: "/etc"}, "a/b": {}},
		"below a file":        {"a": {}, "a/b": {}},
		"a file that is gone": {"a": {Source: "/nonexistent/file"}},
		"a folder as a file":  {"a": {Source: "/"}},
		"a device as a file":  {"a": {Source: "/dev/zero"}},
	} {
		if err := tree.write(t.Context(), io.Discard); err == nil {
			t.Errorf("%s: written", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (Tree{"a": {}}).write(ctx, io.Discard); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestAdd: a package's files are where they are with /bin a link, nothing is setuid, and two packages' files do not hide each other.
func TestAdd(t *testing.T) {
	tree := Tree{}
	p := &deb.Package{Name: "shop", Control: "Package: shop\n", Files: map[string]deb.File{
		"bin/shop": {Mode: 0o4755 & 0o777, Data: []byte("x")}, "lib/x/up": {Mode: 0o777, Link: "../../usr/y"}, "sbin/abs": {Mode: 0o777, Link: "/bin/shop"},
		"etc/conf": {Mode: 0o600},
	}}
	if err := tree.Add(p); err != nil {
		t.Fatal(err)
	}
	want := Tree{
		"usr/bin/shop": {Mode: 0o755, Data: []byte("x"), Package: "shop"}, "usr/lib/x/up": {Mode: 0o777, Link: "/usr/y", Package: "shop"},
		"usr/sbin/abs": {Mode: 0o777, Link: "/bin/shop", Package: "shop"}, "etc/conf": {Mode: 0o644, Package: "shop"},
		"var/lib/dpkg/status.d/shop": {Mode: 0o644, Data: []byte("Package: shop\n"), Package: "shop"},
	}
	if diff := cmp.Diff(want, tree); diff != "" {
		t.Error(diff)
	}
	other := &deb.Package{Name: "other", Files: map[string]deb.File{"usr/bin/shop": {Mode: 0o755, Data: []byte("y")}}}
	if err := tree.Add(other); err == nil || !strings.Contains(err.Error(), "in two packages, shop and other") {
		t.Error(err)
	}
}
