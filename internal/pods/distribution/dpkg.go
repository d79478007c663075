package distribution

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"packetwalk.dev/internal/base/program"
)

// A debian is a package that is installed.
type debian struct {
	name, version, arch string
	essential           bool
	needs               [][]string        // Pre-Depends and Depends: of each entry one package is needed
	provides            []string          // virtual packages
	conffiles           map[string]string // MD5 sums of configuration files as the package brought them, by path
}

// The bytes between dpkg-query's fields and records; no field has them.
const (
	field  = "\x1f"
	record = "\x1e"
)

var fields = strings.Join([]string{"${Package}", "${Version}", "${Architecture}", "${db:Status-Status}", "${Essential}", "${Provides}",
	"${Pre-Depends}", "${Depends}", "${Conffiles}"}, field) + record

// installed asks dpkg for all packages of the machine's own architecture that are installed.
func installed(ctx context.Context, machine string) ([]debian, error) {
	database := filepath.Join(machine, "var/lib/dpkg")
	out, err := program.Command{Path: "dpkg-query", Args: []string{"--admindir=" + database, "-W", "-f", fields}}.Output(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask dpkg which packages there are: %w; containers' programs are assembled from packages of Debian or Ubuntu", err)
	}
	return parsePackages(string(out))
}

func parsePackages(text string) ([]debian, error) {
	var all []debian
	native := ""
	for rec := range strings.SplitSeq(strings.TrimSuffix(text, record), record) {
		f := strings.Split(rec, field)
		if len(f) != 9 {
			return nil, fmt.Errorf("dpkg-query printed %d fields of a package and not 9: %.80q", len(f), rec)
		}
		if f[3] != "installed" && !strings.HasPrefix(f[3], "triggers-") {
			continue
		}
		if f[0] == "libc-bin" { // the system's own programs are of the machine's architecture
			native = f[2]
		}
		all = append(all, debian{name: f[0], version: f[1], arch: f[2], essential: f[4] == "yes", provides: names(f[5], ","),
			needs: parseNeeds(f[6] + "," + f[7]), conffiles: parseConffiles(f[8])})
	}
	var own []debian
	for _, p := range all {
		if p.arch == native || p.arch == "all" {
			own = append(own, p)
		}
	}
	return own, nil
}

// names are the packages' names of a list as in "libc6 (>= 2.34), awk:any".
func names(list, separator string) (all []string) {
	for entry := range strings.SplitSeq(list, separator) {
		name, _, _ := strings.Cut(strings.TrimSpace(entry), " ")
		if name, _, _ = strings.Cut(name, ":"); name != "" {
			all = append(all, name)
		}
	}
	return all
}

func parseNeeds(list string) (needs [][]string) {
	for entry := range strings.SplitSeq(list, ",") {
		if alternatives := names(entry, "|"); len(alternatives) > 0 {
			needs = append(needs, alternatives)
		}
	}
	return needs
}

// parseConffiles reads lines of "PATH MD5", some with a third word: "obsolete" for one that the package has no more.
func parseConffiles(text string) map[string]string {
	sums := map[string]string{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 2 {
			sums[f[0]] = f[1]
		}
	}
	return sums
}

// A content is what a package has, by dpkg's records.
type content struct {
	paths []string          // all of it, directories too
	sums  map[string]string // MD5 sums of its regular files, by path
}

func readContent(machine *os.Root, p debian) (content, error) {
	list, err := readInfo(machine, p, ".list")
	if err != nil {
		return content{}, err
	}
	sums, err := readInfo(machine, p, ".md5sums")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a package without regular files has none
		return content{}, err
	}
	c := content{sums: map[string]string{}}
	for line := range strings.Lines(sums) {
		if sum, path, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  "); ok {
			c.sums["/"+path] = sum
		}
	}
	for path, sum := range p.conffiles {
		c.sums[path] = sum
	}
	for line := range strings.Lines(list) {
		c.paths = append(c.paths, strings.TrimSuffix(line, "\n"))
	}
	return c, nil
}

// readInfo reads a file of dpkg's about a package; of one that can be installed for several architectures it has the architecture's name.
func readInfo(machine *os.Root, p debian, extension string) (string, error) {
	data, err := machine.ReadFile("var/lib/dpkg/info/" + p.name + ":" + p.arch + extension)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = machine.ReadFile("var/lib/dpkg/info/" + p.name + extension)
	}
	return string(data), err
}

// A diversion is a path of which all packages but one have their file elsewhere (dpkg-divert(1)).
type diversion struct {
	to string
	by string // the package that does not; ":" where the machine's administrator made it
}

// readDiversions reads dpkg's file: three lines for each.
func readDiversions(machine *os.Root) (map[string]diversion, error) {
	data, err := machine.ReadFile("var/lib/dpkg/diversions")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	diversions := map[string]diversion{}
	for l := strings.Split(string(data), "\n"); len(l) >= 3; l = l[3:] {
		diversions[l[0]] = diversion{to: l[1], by: l[2]}
	}
	return diversions, nil
}

// An alternative is a link to one of several programs that do the same (update-alternatives(1)), with others that go with it.
type alternative struct {
	names, links []string // the alternative's own first
	choices      []choice
}

type choice struct {
	priority int
	paths    []string // one for each of the names; "" where this choice has none
}

func readAlternatives(machine *os.Root) ([]alternative, error) {
	const folder = "var/lib/dpkg/alternatives"
	entries, err := fs.ReadDir(machine.FS(), folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []alternative
	for _, e := range entries {
		data, err := machine.ReadFile(folder + "/" + e.Name())
		if err != nil {
			return nil, err
		}
		if a, ok := parseAlternative(e.Name(), string(data)); ok {
			all = append(all, a)
		}
	}
	return all, nil
}

// parseAlternative reads a file of update-alternatives: the status, the link, name and link of each other one, an empty line; then for
// each choice the path, the priority and the paths of the others; then an empty line.
func parseAlternative(name, text string) (a alternative, ok bool) {
	lines := strings.Split(text, "\n")
	if len(lines) < 3 {
		return a, false
	}
	a.names, a.links = []string{name}, []string{lines[1]}
	lines = lines[2:]
	for len(lines) >= 2 && lines[0] != "" {
		a.names, a.links = append(a.names, lines[0]), append(a.links, lines[1])
		lines = lines[2:]
	}
	for lines = lines[1:]; len(lines) > len(a.names) && lines[0] != ""; lines = lines[len(a.names)+1:] {
		c := choice{paths: append([]string{lines[0]}, lines[2:len(a.names)+1]...)}
		if _, err := fmt.Sscan(lines[1], &c.priority); err != nil {
			return a, false
		}
		a.choices = append(a.choices, c)
	}
	return a, true
}
