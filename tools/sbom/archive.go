package sbom

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// maxFile bounds a file of an archive, in bytes.
const maxFile = 1 << 30

// ReadArchive reads a .tar.gz or .tar.zst of a release: the modules of its programs, and the packages of a Debian root that it has as
// whole.tar. A program that is not Go's is an error, because what it is made of is not known. own is the version of the project's own module.
func ReadArchive(file, own string) ([]Component, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := decompress(file, bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer content.Close()
	var all []Component
	err = eachFile(content, func(h *tar.Header, content io.Reader) error {
		if path.Base(h.Name) == "whole.tar" {
			packages, err := readRoot(content)
			all = append(all, packages...)
			return err
		}
		modules, err := readProgram(own, content)
		all = append(all, modules...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return sorted(all), nil
}

func decompress(file string, r io.Reader) (io.ReadCloser, error) {
	switch {
	case strings.HasSuffix(file, ".tar.gz"):
		return gzip.NewReader(r)
	case strings.HasSuffix(file, ".tar.zst"):
		d, err := zstd.NewReader(r)
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return nil, errors.New("want .tar.gz or .tar.zst")
}

func eachFile(archive io.Reader, read func(*tar.Header, io.Reader) error) error {
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if h.Size > maxFile {
			return fmt.Errorf("%s has %d bytes, more than %d", h.Name, h.Size, maxFile)
		}
		if err := read(h, r); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

// executables are the first bytes of programs: ELF, Mach-O of 64 bits, and Windows'.
var executables = []string{"\x7fELF", "\xcf\xfa\xed\xfe", "MZ"}

// readProgram returns a program's modules, and none of a file that is no program.
func readProgram(own string, content io.Reader) ([]Component, error) {
	start := bufio.NewReader(content)
	first, err := start.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for _, magic := range executables {
		if !bytes.HasPrefix(first, []byte(magic)) {
			continue
		}
		text, err := io.ReadAll(start)
		if err != nil {
			return nil, err
		}
		info, err := buildinfo.Read(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		return modulesOf(own, info), nil
	}
	return nil, nil
}

// readRoot returns the packages of a Debian root, by dpkg's record.
func readRoot(archive io.Reader) ([]Component, error) {
	var release, status []byte
	err := eachFile(archive, func(h *tar.Header, content io.Reader) (err error) {
		switch path.Clean("/" + h.Name) {
		case "/usr/lib/os-release":
			release, err = io.ReadAll(content)
		case "/var/lib/dpkg/status":
			status, err = io.ReadAll(content)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	version := strings.Trim(field(string(release), "VERSION_ID="), `"`)
	if version == "" || len(status) == 0 {
		return nil, errors.New("no Debian root: want /usr/lib/os-release and /var/lib/dpkg/status")
	}
	var packages []Component
	for stanza := range strings.SplitSeq(string(status), "\n\n") {
		if name := field(stanza, "Package: "); name != "" && strings.HasSuffix(field(stanza, "Status: "), " installed") {
			packages = append(packages, Debian(version, name, field(stanza, "Version: "), field(stanza, "Architecture: "), ""))
		}
	}
	return packages, nil
}

// field returns what follows a prefix on the first line that has it, "" without one.
func field(text, prefix string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, prefix); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
