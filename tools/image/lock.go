package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/base/atomicfile"
)

// A lockedPackage is one package of packages.lock.
type lockedPackage struct {
	image         string // GOARCH of the image that it is for
	name, version string
	arch          string // the package's own, all for any
	size          int64  // bytes
	sha256        string // in hexadecimal
	path          string // below the mirror
}

const lockHead = `# Debian's packages that the image is made of: make image LOCK=update renews this by apt, which checks Debian's signatures.
# image package version architecture bytes sha256 path-on-the-mirror
# locked on `

// maxPackage is more than any package of the image has, in bytes.
const maxPackage = 64 << 20

func readLock(file string) ([]lockedPackage, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w; make image LOCK=update writes it", err)
	}
	var all []lockedPackage
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if strings.HasPrefix(line, "#") {
			continue
		}
		l, err := parseLocked(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w; make image LOCK=update writes it anew", file, n, err)
		}
		all = append(all, l)
	}
	return all, nil
}

func parseLocked(line string) (lockedPackage, error) {
	f := strings.Fields(line)
	if len(f) != 7 {
		return lockedPackage{}, fmt.Errorf("%d fields, and not 7", len(f))
	}
	size, err := strconv.ParseInt(f[4], 10, 64)
	if err != nil || size < 1 || size > maxPackage {
		return lockedPackage{}, fmt.Errorf("%q is no size of a package in bytes, at most %d", f[4], maxPackage)
	}
	if sum, err := hex.DecodeString(f[5]); err != nil || len(sum) != 32 {
		return lockedPackage{}, fmt.Errorf("%q is no SHA-256 digest in hexadecimal", f[5])
	}
	if !fs.ValidPath(f[6]) {
		return lockedPackage{}, fmt.Errorf("%q is no path below a mirror", f[6])
	}
	return lockedPackage{image: f[0], name: f[1], version: f[2], arch: f[3], size: size, sha256: f[5], path: f[6]}, nil
}

func (l lockedPackage) String() string {
	return strings.Join([]string{l.image, l.name, l.version, l.arch, strconv.FormatInt(l.size, 10), l.sha256, l.path}, " ")
}

// writeLock replaces the file. day is when its versions were chosen, as 2006-01-02; tools/release refuses an old one.
func writeLock(file string, all []lockedPackage, day string) error {
	slices.SortFunc(all, func(a, b lockedPackage) int { return strings.Compare(a.String(), b.String()) })
	var text bytes.Buffer
	text.WriteString(lockHead + day + "\n")
	for _, l := range all {
		fmt.Fprintln(&text, l)
	}
	return atomicfile.Write(file, text.Bytes(), 0o644)
}
