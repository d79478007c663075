// Package knownhole knows versions of upstream's programs that must not run on nodes any more, because of holes that later ones close.
package knownhole

import (
	"debug/buildinfo"
	"fmt"
	"runtime/debug"
	"slices"

	"golang.org/x/mod/semver"
)

// A hole is one, or several, of a Go module.
type hole struct {
	module string
	ids    string
	fixed  []string // the first version of each minor version that has the fix, ascending; later minor versions have it from their start
}

// holes are those through which a container gets at its node. https://github.com/opencontainers/runc/security/advisories and
// https://github.com/containerd/containerd/security/advisories name them.
var holes = []hole{
	{"github.com/opencontainers/runc", "CVE-2025-31133, CVE-2025-52565 and CVE-2025-52881", []string{"v1.2.8", "v1.3.3", "v1.4.0-rc.3"}},
	{"github.com/containerd/containerd/v2", "CVE-2024-25621 and CVE-2025-64329", []string{"v2.0.7", "v2.1.5", "v2.2.0"}},
}

// Of returns an error that names the holes of a module's version and the version that closes them, nil if none is known.
func Of(module, version string) error {
	for _, h := range holes {
		if h.module == module && !h.isFixed(version) {
			return fmt.Errorf("%s %s has %s; take %s or later", module, version, h.ids, h.fixed[len(h.fixed)-1])
		}
	}
	return nil
}

func (h hole) isFixed(version string) bool {
	for _, first := range h.fixed {
		if semver.MajorMinor(first) == semver.MajorMinor(version) {
			return semver.Compare(version, first) >= 0
		}
	}
	return semver.Compare(version, h.fixed[len(h.fixed)-1]) > 0
}

// OfProgram returns what [Of] says of the modules that a Go program is made of. A file that is no Go program is an error.
func OfProgram(file string) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the modules of %s: %w", file, err)
	}
	for _, m := range slices.Concat([]*debug.Module{&info.Main}, info.Deps) {
		if m.Replace != nil {
			m = m.Replace
		}
		if err := Of(m.Path, m.Version); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}
