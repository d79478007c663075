package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/images"
)

// packages are those of Debian that the image has files of: programs, the libraries that these need, and what they look for by name.
var packages = strings.Fields(`
	base-files ca-certificates conntrack ebtables iproute2 ipset iptables netbase nftables
	libbpf1 libbsd0 libc6 libcap2 libedit2 libelf1t64 libgmp10 libip4tc2 libip6tc2 libipset13t64 libjansson4 libmd0 libmnl0
	libnetfilter-conntrack3 libnfnetlink0 libnftables1 libnftnl11 libpcre2-8-0 libselinux1 libtinfo6 libxtables12 libzstd1 zlib1g
`)

// debianPrograms are what the image has of Debian's programs, by name, with the links that lead to them (iptables-nft-save).
var debianPrograms = []string{"bridge", "conntrack", "ebtables-legacy", "ip", "ipset", "nft", "xtables-legacy-multi", "xtables-nft-multi"}

// patterns are the other files that the image has of the packages (path.Match).
var patterns = []string{
	"/etc/ethertypes", "/etc/iproute2/*", "/etc/protocols", "/etc/services", "/usr/lib/os-release", "/usr/share/iproute2/*",
	"/usr/lib/*.so.*", "/usr/lib64/*.so.*", "/usr/lib/*/*.so", "/usr/lib/*/*.so.*", "/usr/lib/*/xtables/*.so",
	"/usr/share/common-licenses/*", "/usr/share/doc/*", "/usr/share/doc/*/copyright",
}

// made are files that no package has, and directories that are mounted over or written to.
var made = []images.File{
	{Path: "/bin", Link: "usr/bin"}, {Path: "/lib", Link: "usr/lib"}, {Path: "/lib64", Link: "usr/lib64"}, {Path: "/sbin", Link: "usr/sbin"},
	{Path: "/usr/lib64/"}, {Path: "/dev/"}, {Path: "/proc/", Mode: 0o555}, {Path: "/root/", Mode: 0o700}, {Path: "/run/"},
	{Path: "/sys/", Mode: 0o555}, {Path: "/tmp/", Mode: 0o1777}, {Path: "/var/lib/"},
	{Path: "/etc/group", Text: "root:x:0:\nnogroup:x:65534:\n"},
	{Path: "/etc/nsswitch.conf", Text: "passwd: files\ngroup: files\nhosts: files dns\nprotocols: files\nservices: files\nethers: files\n"},
	{Path: "/etc/os-release", Link: "../usr/lib/os-release"},
	{Path: "/etc/passwd", Text: "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n"},
}

// alternatives are links that Debian's scripts make on each machine, to the variant that is its default.
var alternatives = []string{"arptables", "ebtables", "ip6tables", "iptables"}

const (
	// records is where scanners look for packages in an image without dpkg, a file for each, as in Google's distroless images.
	records      = "/var/lib/dpkg/status.d/"
	certificates = "/etc/ssl/certs/ca-certificates.crt"
)

// debianFiles returns the image's files of Debian's packages, which it reads without installing them. Those that are not in the cache come
// from the mirror.
func debianFiles(ctx context.Context, mirror string, all []lockedPackage) ([]images.File, error) {
	files := slices.Clone(made)
	for _, name := range alternatives {
		for _, what := range []string{"", "-restore", "-save"} {
			files = append(files, images.File{Path: "/usr/sbin/" + name + what, Link: "xtables-nft-multi"})
		}
	}
	var authorities strings.Builder // as update-ca-certificates makes it
	for _, l := range all {
		file, err := fetch(ctx, mirror, l)
		if err != nil {
			return nil, err
		}
		record, err := program.Command{Path: "dpkg-deb", Args: []string{"--field", file}}.Output(ctx)
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", l.name, err)
		}
		files = append(files, images.File{Path: records + l.name, Text: string(record)})
		archive, err := program.Command{Path: "dpkg-deb", Args: []string{"--fsys-tarfile", file}, MaxOutput: maxContent}.Output(ctx)
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", l.name, err)
		}
		content, err := readPackage(archive, &authorities)
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", l.name, err)
		}
		files = append(files, content...)
	}
	return append(files, images.File{Path: certificates, Text: authorities.String()}), nil
}

// maxContent is more than any package of the image has unpacked, in bytes.
const maxContent = 256 << 20

// readPackage returns what the image has of a package's archive, with /bin and its like as links into /usr. Nothing is setuid. Certificates
// are written to authorities.
func readPackage(archive []byte, authorities io.Writer) (files []images.File, err error) {
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		source := path.Clean("/" + h.Name)
		f := images.File{Path: inUsr(source), Mode: 0o644}
		if h.Mode&0o111 != 0 {
			f.Mode = 0o755
		}
		isAuthority := strings.HasPrefix(f.Path, "/usr/share/ca-certificates/") && strings.HasSuffix(f.Path, ".crt")
		switch {
		case h.Typeflag == tar.TypeReg && isAuthority:
			text, err := io.ReadAll(r)
			if err != nil {
				return nil, err
			}
			fmt.Fprintln(authorities, strings.TrimSuffix(string(text), "\n"))
		case h.Typeflag == tar.TypeReg && isWanted(f.Path, f.Path):
			text, err := io.ReadAll(r)
			if err != nil {
				return nil, err
			}
			f.Text = string(text)
			files = append(files, f)
		case h.Typeflag == tar.TypeLink && isWanted(f.Path, h.Linkname):
			return nil, fmt.Errorf("%s is a hard link, which is not read", f.Path)
		case h.Typeflag == tar.TypeSymlink && isWanted(f.Path, h.Linkname):
			f.Link = movedLink(strings.TrimPrefix(source, "/"), h.Linkname)
			files = append(files, f)
		}
	}
}

// isWanted reports whether the image has a file, or a link to a target.
func isWanted(name, target string) bool {
	switch path.Dir(name) {
	case "/usr/bin", "/usr/sbin":
		return slices.Contains(debianPrograms, path.Base(target))
	}
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, name)
		return ok && err == nil
	})
}

// inUsr returns where an absolute path of a package's leads in the image, where /bin and its like are links into /usr.
func inUsr(name string) string {
	switch top, _, _ := strings.Cut(name[1:], "/"); top {
	case "bin", "lib", "lib64", "sbin":
		return "/usr" + name
	}
	return name
}

// movedLink returns the target of a package's link in the image, by its path without the first slash: one that led up from a
// directory that is in /usr there would lead elsewhere.
func movedLink(source, target string) string {
	if path.IsAbs(target) || inUsr("/"+source) == "/"+source || !strings.Contains(target, "/") {
		return target
	}
	return inUsr(path.Join("/", path.Dir(source), target))
}
