package deb

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"packetwalk.dev/internal/base/bounded"
	"packetwalk.dev/internal/base/program"
)

const control = "Package: shop\nVersion: 1:2.0-1+b1\nArchitecture: arm64\nDescription: a shop\n Package: no field\n"

// tarOf is an archive.
func tarOf(headers ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range headers {
		h := headers[i]
		text := h.PAXRecords["text"]
		h.PAXRecords, h.Size = nil, int64(len(text))
		if err := w.WriteHeader(&h); err != nil {
			panic(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func regular(name, text string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, PAXRecords: map[string]string{"text": text}}
}

func linked(kind byte, name, target string) tar.Header {
	return tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}
}

// member is one as ar has it.
func member(name string, content []byte) string {
	text := fmt.Sprintf("%-16s%-12d%-6d%-6d%-8o%-10d`\n%s", name, 0, 0, 0, 0o100644, len(content), content)
	if len(content)%2 == 1 {
		text += "\n"
	}
	return text
}

// pack is a package of a data archive, packed as its name's ending says.
func pack(t testing.TB, ending string, data []byte) string {
	t.Helper()
	about := compress(t, ending, tarOf(regular("./control", control)))
	return magic + member("debian-binary", []byte("2.0\n")) + member("control.tar"+ending, about) +
		member("data.tar"+ending, compress(t, ending, data))
}

func compress(t testing.TB, ending string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var err error
	switch ending {
	case "":
		return data
	case ".gz":
		w := gzip.NewWriter(&b)
		_, err = w.Write(data)
		err = errors.Join(err, w.Close())
	case ".zst":
		var w *zstd.Encoder
		if w, err = zstd.NewWriter(&b); err == nil {
			_, err = w.Write(data)
			err = errors.Join(err, w.Close())
		}
	case ".xz":
		if _, err := exec.LookPath("xz"); err != nil {
			t.Skip("there is no xz")
		}
		var out []byte
		out, err = program.Command{Path: "xz", Args: []string{"-c", "--check=crc64"}, Stdin: data}.Output(context.WithoutCancel(t.Context()))
		b.Write(out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestRead: files, links and modes of a package, however it is packed, and an odd length.
func TestRead(t *testing.T) {
	data := tarOf(tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}, tar.Header{Typeflag: tar.TypeDir, Name: "./usr/bin/"},
		regular("./usr/bin/shop", "program"), linked(tar.TypeSymlink, "./usr/bin/s", "shop"),
		linked(tar.TypeLink, "./usr/bin/same", "./usr/bin/shop"), linked(tar.TypeSymlink, "./lib/up", "../usr/lib"), linked(tar.TypeSymlink, "./abs", "/etc/shop"))
	want := map[string]File{
		"usr/bin/shop": {Mode: 0o755, Data: []byte("program")}, "usr/bin/s": {Mode: 0o777, Link: "shop"},
		"usr/bin/same": {Mode: 0o755, Data: []byte("program")}, "lib/up": {Mode: 0o777, Link: "../usr/lib"},
		"abs": {Mode: 0o777, Link: "/etc/shop"},
	}
	for _, ending := range []string{"", ".gz", ".xz", ".zst"} {
		t.Run("tar"+ending, func(t *testing.T) {
			p, err := Read(strings.NewReader(pack(t, ending, data)), Most)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&Package{Name: "shop", Version: "1:2.0-1+b1", Architecture: "arm64", Control: control, Files: want}, p); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestHostile: what leads out of a package, is no file, or is too much, is refused, and the error says what.
func TestHostile(t *testing.T) {
	device := tar.Header{Typeflag: tar.TypeChar, Name: "./dev/sda", Mode: 0o600}
	for name, test := range map[string]struct {
		entry tar.Header
		want  string
	}{
		"above":              {regular("../etc/shadow", "x"), "leads out"},
		"above, deeper":      {regular("./usr/../../etc/shadow", "x"), "leads out"},
		"absolute":           {regular("/etc/shadow", "x"), "leads out"},
		"link above":         {linked(tar.TypeSymlink, "./lib/a", "../../etc"), "link out of the package"},
		"link at once":       {linked(tar.TypeSymlink, "./a", ".."), "link out of the package"},
		"link, then above":   {linked(tar.TypeSymlink, "./a", "b/../../c"), "link out of the package"},
		"hard link above":    {linked(tar.TypeLink, "./a", "../etc/shadow"), "leads out"},
		"hard link absolute": {linked(tar.TypeLink, "./a", "/etc/shadow"), "leads out"},
		"hard link to none":  {linked(tar.TypeLink, "./a", "./etc/shadow"), "no file before it"},
		"device":             {device, "neither file, folder nor link"},
		"fifo":               {tar.Header{Typeflag: tar.TypeFifo, Name: "./pipe"}, "neither file, folder nor link"},
		"control character":  {regular("./a\x1b[2J", "x"), "no text"},
		"no UTF-8":           {regular("./a\xff", "x"), "no text"},
		"link of no text":    {linked(tar.TypeSymlink, "./a", "b\n"), "no name"},
		"the top":            {regular(".", "x"), "no folder"},
		"large":              {regular("./a", strings.Repeat("x", 1<<20)), "most that is read"},
	} {
		t.Run(name, func(t *testing.T) {
			few := Limits{Member: 1 << 20, Data: 1 << 20, Files: 10, Control: 1 << 20}
			_, err := Read(strings.NewReader(pack(t, ".gz", tarOf(test.entry))), few)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want %q", err, test.want)
			}
			if err != nil && strings.ContainsAny(err.Error(), "\x1b\n") {
				t.Errorf("control characters in %q", err)
			}
		})
	}
}

// TestHardLinkToALink: a hard link to a symbolic link would be a way around the checks of both.
func TestHardLinkToALink(t *testing.T) {
	data := tarOf(linked(tar.TypeSymlink, "./a", "/etc"), linked(tar.TypeLink, "./b", "./a"))
	if _, err := Read(strings.NewReader(pack(t, "", data)), Most); err == nil || !strings.Contains(err.Error(), "no file before it") {
		t.Error(err)
	}
}

// TestTooMuch: a package that is small as it comes is refused when it unpacks to more than a limit, without its being read whole.
func TestTooMuch(t *testing.T) {
	var many []tar.Header
	for n := range 11 {
		many = append(many, regular(fmt.Sprintf("./%d", n), ""))
	}
	few := Limits{Member: 1 << 20, Data: 1 << 20, Files: 10, Control: 1 << 20}
	_, err := Read(strings.NewReader(pack(t, ".gz", tarOf(many...))), few)
	if err == nil || !strings.Contains(err.Error(), "more than 10 files") {
		t.Error(err)
	}
	var tooLong *bounded.TooLongError
	zeros := compress(t, ".xz", make([]byte, 64<<20))
	bomb := magic + member("debian-binary", []byte("2.0\n")) + member("control.tar", tarOf(regular("control", control)))
	for name, packed := range map[string]string{
		"zeros behind the end": bomb + member("data.tar.xz", zeros), "a long member": bomb + member("data.tar", make([]byte, 2<<20)),
		"a long control": magic + member("debian-binary", []byte("2.0\n")) +
			member("control.tar.xz", compress(t, ".xz", tarOf(regular("./md5sums", strings.Repeat("x", 2<<20)), regular("./control", control)))),
	} {
		if _, err := Read(strings.NewReader(packed), few); !errors.As(err, &tooLong) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// sparse is the part of an archive with a file of one hole (GNU tar's manual, Sparse Formats, PAX Format version 1.0).
func sparse(name string, size int) string {
	record := func(key, value string) string {
		text := " " + key + "=" + value + "\n"
		n := len(text) + 2 // those of the number itself
		return fmt.Sprintf("%d%s", n, text)
	}
	pax := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", name) +
		record("GNU.sparse.realsize", fmt.Sprint(size))
	entries := tarOf(regular("pax", pax), regular(name, "0\n"+strings.Repeat("\x00", 510)))
	entries = entries[:4*512]
	entries[156] = tar.TypeXHeader
	sum := 0
	for i, b := range entries[:512] {
		if i >= 148 && i < 156 {
			b = ' '
		}
		sum += int(b)
	}
	copy(entries[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return string(entries)
}

// TestSparse: a file of which the archive has only where its holes are counts as long as it is with them.
func TestSparse(t *testing.T) {
	const most = 1 << 20
	few := Limits{Member: most, Data: most, Files: 10, Control: most}
	for size, fits := range map[int]bool{most + 1: false, most * 2 / 3: false, most / 3: true} {
		data := sparse("a", size) + sparse("b", size) + strings.Repeat("\x00", 1024)
		p, err := Read(strings.NewReader(pack(t, "", []byte(data))), few)
		var tooLong *bounded.TooLongError
		if fits && (err != nil || len(p.Files["b"].Data) != size) || !fits && !errors.As(err, &tooLong) {
			t.Errorf("two of %d bytes: %v", size, err)
		}
	}
}

// TestNoPackage: what is none, or ends early.
func TestNoPackage(t *testing.T) {
	whole := pack(t, ".gz", tarOf(regular("a", "x")))
	for name, text := range map[string]string{
		"empty": "", "text": "a text of no meaning at all", "no members": magic, "members in another order": magic + member("data.tar", nil),
		"format 3":      magic + member("debian-binary", []byte("3.0\n")),
		"no control":    magic + member("debian-binary", []byte("2.0\n")) + member("control.tar", tarOf(regular("other", ""))),
		"packed oddly":  magic + member("debian-binary", []byte("2.0\n")) + member("control.tar.rar", nil),
		"odd name":      strings.Replace(pack(t, "", tarOf()), "Package: shop", "Package: ../a", 1),
		"a minus":       strings.Replace(whole, fmt.Sprintf("%-10d`", 4), fmt.Sprintf("%-10d`", -4), 1),
		"cut":           whole[:len(whole)-20],
		"cut in a head": whole[:len(magic)+30],
	} {
		if p, err := Read(strings.NewReader(text), Most); err == nil {
			t.Errorf("%s: read as %v", name, p)
		}
	}
}

// TestReal: packages that this machine's apt has downloaded are read as dpkg-deb reads them.
func TestReal(t *testing.T) {
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	all, _ := filepath.Glob(filepath.Join(cache, "packetwalk", "debian", "*.deb"))
	if len(all) == 0 {
		t.Skip("make image has not downloaded packages")
	}
	for _, file := range all {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Read(f, Most)
		f.Close()
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		listed, err := program.Command{Path: "dpkg-deb", Args: []string{"--fsys-tarfile", file}}.Output(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		compare(t, p, listed)
	}
}

// compare holds a package against dpkg-deb's archive of its files.
func compare(t *testing.T, p *Package, archive []byte) {
	t.Helper()
	count := 0
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		count++
		f, ok := p.Files[filepath.Clean(h.Name)]
		data, _ := io.ReadAll(r)
		if !ok || h.Typeflag == tar.TypeReg && !bytes.Equal(data, f.Data) || h.Typeflag == tar.TypeSymlink && f.Link != h.Linkname {
			t.Errorf("%s: %s differs", p.Name, h.Name)
		}
	}
	if count != len(p.Files) {
		t.Errorf("%s: %d files, dpkg-deb has %d", p.Name, len(p.Files), count)
	}
}

// FuzzRead: no package makes it panic, or has a name or a link that leads out.
func FuzzRead(f *testing.F) {
	f.Add([]byte(pack(f, "", tarOf(regular("./a", "x"), linked(tar.TypeSymlink, "./b", "a"), linked(tar.TypeLink, "./c", "a")))))
	f.Add([]byte(pack(f, ".gz", tarOf(regular("../a", "x")))))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Read(bytes.NewReader(data), Limits{Member: 1 << 20, Data: 1 << 20, Files: 100, Control: 1 << 20})
		if err != nil {
			return
		}
		for name, file := range p.Files {
			relative := file.Link != "" && !filepath.IsAbs(file.Link)
			if !filepath.IsLocal(name) || relative && !filepath.IsLocal(filepath.Join(filepath.Dir(name), file.Link)) {
				t.Errorf("%q leads to %q", name, file.Link)
			}
		}
	})
}
