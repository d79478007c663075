package nodeimage

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/bounded"
	"packetwalk.dev/internal/pods/distribution"
)

// Packages are the Debian packages that have what Choose takes; those that they depend on have the libraries.
var Packages = []string{"base-files", "ca-certificates", "conntrack", "ebtables", "iproute2", "ipset", "iptables", "netbase", "nftables"}

// programs are what the image has of Debian's, by name; all in programDirs that are links to one of them come with it (iptables-nft-save).
var programs = []string{
	"bridge", "conntrack", "ebtables-legacy", "ip", "ipset", "nft", "xtables-legacy-multi", "xtables-nft-multi",
}

var programDirs = []string{"usr/sbin", "usr/bin"}

// patterns are the files that programs look for by name (path.Match).
var patterns = []string{
	"etc/ethertypes", "etc/iproute2/*", "etc/protocols", "etc/services", "usr/lib/*/xtables/*.so", "usr/lib/os-release", "usr/share/iproute2/*",
	"usr/share/common-licenses/*",
}

// alternatives are links that Debian's scripts make on each machine, to the variant that is its default.
var alternatives = map[string]string{
	"arptables": "xtables-nft-multi", "ebtables": "xtables-nft-multi", "ip6tables": "xtables-nft-multi", "iptables": "xtables-nft-multi",
}

// made are files that no package has, and directories that are mounted over or written to.
var made = Tree{
	"bin": {Link: "usr/bin"}, "lib": {Link: "usr/lib"}, "lib64": {Link: "usr/lib64"}, "sbin": {Link: "usr/sbin"},
	"usr/lib64":         {Mode: fs.ModeDir | 0o755},
	"dev":               {Mode: fs.ModeDir | 0o755},
	"etc/group":         {Mode: 0o644, Data: []byte("root:x:0:\nnogroup:x:65534:\n")},
	"etc/nsswitch.conf": {Mode: 0o644, Data: []byte("passwd: files\ngroup: files\nhosts: files dns\nprotocols: files\nservices: files\nethers: files\n")},
	"etc/os-release":    {Link: "../usr/lib/os-release"},
	"etc/passwd": {Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/sbin/nologin\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n")},
	"proc": {Mode: fs.ModeDir | 0o555}, "root": {Mode: fs.ModeDir | 0o700}, "run": {Mode: fs.ModeDir | 0o755},
	"sys": {Mode: fs.ModeDir | 0o555}, "tmp": {Mode: fs.ModeDir | fs.ModeSticky | 0o777}, "var/lib": {Mode: fs.ModeDir | 0o755},
}

const certificates = "etc/ssl/certs/ca-certificates.crt"

// maxFile is more than any file of Debian's has that is read whole, in octets.
const maxFile = 64 << 20

// A choice is the files of a tree that the image has, in the making.
type choice struct {
	from, to Tree
	machine  elf.Machine // that all programs and libraries are for
	libs     string      // the directory of libraries
}

// Choose takes of all files of Debian's packages those that the image has: the programs, what they need by their own dynamic sections
// (elf(5)), and the files that they look for by name. An error is that of a package that is not there, or whose programs are for another
// architecture (GOARCH).
func Choose(all Tree, arch string) (Tree, error) {
	c := choice{from: all, to: maps.Clone(made)}
	var ok bool
	if c.machine, ok = machines[arch]; !ok {
		return nil, fmt.Errorf("architecture %s: an image is made for %s", arch, strings.Join(slices.Sorted(maps.Keys(machines)), ", "))
	}
	libc := all.matching("usr/lib/*/libc.so.6")
	if len(libc) != 1 {
		return nil, fmt.Errorf("%d files are called libc.so.6, and one should be", len(libc))
	}
	c.libs = path.Dir(libc[0])
	for _, name := range programs {
		if err := c.program(name); err != nil {
			return nil, err
		}
	}
	for _, p := range patterns {
		for _, name := range all.matching(p) {
			if err := c.take(name); err != nil {
				return nil, err
			}
		}
	}
	if err := errors.Join(c.links(), c.trust(), c.notices()); err != nil {
		return nil, err
	}
	return c.to, nil
}

// machines are the architectures that images are made for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

func (c *choice) program(name string) error {
	for _, dir := range programDirs {
		if _, ok := c.from[path.Join(dir, name)]; ok {
			return c.take(path.Join(dir, name))
		}
	}
	return fmt.Errorf("no package has the program %s", name)
}

// maxLinks is how many links may follow one another, as the kernel has it (MAXSYMLINKS).
const maxLinks = 40

// take takes a file with all that it leads to and needs.
func (c *choice) take(name string) error {
	var way []string
	for range maxLinks {
		f, ok := c.from[name]
		if !ok {
			return fmt.Errorf("no package has /%s", name)
		}
		if _, has := c.to[name]; has && !slices.Contains(way, name) {
			return nil
		}
		c.to[name], way = f, append(way, name)
		if f.Link == "" {
			return c.needed(name, f)
		}
		name = target(name, f.Link)
	}
	return fmt.Errorf("/%s is a link in a circle", name)
}

// target is where a link at a path leads, by its path without the first slash.
func target(name, link string) string {
	if !path.IsAbs(link) {
		link = path.Join("/", path.Dir(name), link)
	}
	return strings.TrimPrefix(distribution.InLayer(path.Clean(link)), "/")
}

// needed takes the libraries of a program or a library, and the one that loads them.
func (c *choice) needed(name string, f File) error {
	content, err := f.read()
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(content), elf.ELFMAG) {
		return nil
	}
	d, err := readDynamic(content)
	if err != nil {
		return fmt.Errorf("/%s: %w", name, err)
	}
	if d.machine != c.machine {
		return fmt.Errorf("/%s is a program for %s, and should be for %s", name, d.machine, c.machine)
	}
	if d.loader != "" {
		if err := c.take(target("", d.loader)); err != nil {
			return fmt.Errorf("what loads /%s: %w", name, err)
		}
	}
	for _, lib := range d.libraries {
		if err := c.library(lib, d.paths); err != nil {
			return fmt.Errorf("/%s needs a library: %w", name, err)
		}
	}
	return nil
}

func (c *choice) library(name string, paths []string) error {
	for _, dir := range append(paths, c.libs, "usr/lib") {
		at := target("", path.Join("/", dir, name))
		if _, ok := c.from[at]; ok {
			return c.take(at)
		}
	}
	return fmt.Errorf("no package has %s", name)
}

func (f File) read() ([]byte, error) {
	r, _, err := f.open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return bounded.Read(r, maxFile)
}

// links takes the names by which the programs go, and makes those of the default variants.
func (c *choice) links() error {
	for name, f := range c.from {
		if f.Link == "" || !slices.Contains(programDirs, path.Dir(name)) {
			continue
		}
		to := target(name, f.Link)
		if file, ok := c.to[to]; ok && file.Link == "" && !file.Mode.IsDir() {
			c.to[name] = f
		}
	}
	for name, program := range alternatives {
		for _, what := range []string{"", "-restore", "-save"} {
			if _, ok := c.to["usr/sbin/"+program]; !ok {
				return fmt.Errorf("no package has the program %s", program)
			}
			c.to["usr/sbin/"+name+what] = File{Link: program, Mode: 0o777}
		}
	}
	return nil
}

// trust has the authorities in one file, as update-ca-certificates makes it.
func (c *choice) trust() error {
	if f, ok := c.from[certificates]; ok {
		c.to[certificates] = f
		return nil
	}
	var bundle strings.Builder
	of := ""
	for _, name := range slices.Sorted(maps.Keys(c.from)) {
		if !strings.HasPrefix(name, "usr/share/ca-certificates/") || !strings.HasSuffix(name, ".crt") {
			continue
		}
		data, err := c.from[name].read()
		if err != nil {
			return err
		}
		bundle.WriteString(strings.TrimSuffix(string(data), "\n") + "\n")
		of = c.from[name].Package
	}
	if bundle.Len() == 0 {
		return errors.New("no package has certificates of authorities")
	}
	c.to[certificates] = File{Mode: 0o644, Data: []byte(bundle.String()), Package: of}
	return nil
}

// notices takes the copyright files and records of the packages that files came in; a package's folder may be a link to another's.
func (c *choice) notices() error {
	for _, p := range c.to.packages() {
		dir := "usr/share/doc/" + p
		if f, ok := c.from[dir]; ok && f.Link != "" {
			c.to[dir] = f
			dir = target(dir, f.Link)
		}
		if err := errors.Join(c.take(dir+"/copyright"), c.take(records+p)); err != nil {
			return err
		}
	}
	return nil
}

// matching are the names that a pattern means, sorted.
func (t Tree) matching(pattern string) (all []string) {
	for name := range t {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// packages are those that the tree's files came in, sorted.
func (t Tree) packages() []string {
	all := map[string]bool{}
	for _, f := range t {
		if f.Package != "" {
			all[f.Package] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// A dynamic is what a program says that it needs to run.
type dynamic struct {
	machine   elf.Machine
	loader    string   // its interpreter
	libraries []string // by name
	paths     []string // where to look for them first
}

func readDynamic(content []byte) (dynamic, error) {
	f, err := elf.NewFile(strings.NewReader(string(content)))
	if err != nil {
		return dynamic{}, err
	}
	d := dynamic{machine: f.Machine}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		text, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
		if err != nil {
			return d, err
		}
		d.loader = strings.TrimRight(string(text), "\x00")
	}
	if d.libraries, err = f.ImportedLibraries(); err != nil {
		return d, err
	}
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		all, err := f.DynString(tag)
		if err != nil {
			return d, err
		}
		for _, list := range all {
			d.paths = append(d.paths, strings.Split(list, ":")...)
		}
	}
	return d, nil
}
