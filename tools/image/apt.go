package main

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/base/bounded"
	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/nodeimage"
)

// sources are Debian's, and whose signatures apt asks for; what this machine has installed, and which Debian it is, does not matter.
const sources = `Types: deb
URIs: %[1]s/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: %[1]s/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
`

// settings keep apt in a folder of its own, where nothing is installed (apt.conf(5)).
const settings = `Dir::State "%[1]s/state";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Etc "%[1]s/etc";
Dir::Etc::parts "%[1]s/none";
Dir::Etc::sourcelist "%[1]s/etc/debian.sources";
Dir::Etc::sourceparts "%[1]s/none";
Dir::Etc::preferencesparts "%[1]s/none";
Dir::Log "%[1]s";
APT::Architecture "%[2]s";
APT::Architectures "%[2]s";
APT::Install-Recommends "false";
APT::Sandbox::User "";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::Languages "none";
Acquire::http::Timeout "30";
Debug::NoLocking "true";
`

// longestApt bounds one run of apt-get.
const longestApt = 10 * time.Minute

// renew writes packages.lock anew: for each architecture the packages of which the image has files, in the versions that Debian has now.
func (m *maker) renew(ctx context.Context) error {
	var all []locked
	for _, arch := range m.archs {
		fmt.Fprintf(os.Stderr, "asking %s for packages for %s\n", m.mirror, arch)
		list, err := m.resolve(ctx, arch)
		if err != nil {
			return err
		}
		all = append(all, list...)
	}
	if old, err := readLock(m.lock); err == nil { // those of architectures that are not built now stay
		all = append(all, slices.DeleteFunc(old, func(l locked) bool { return slices.Contains(m.archs, l.image) })...)
	}
	return writeLock(m.lock, all)
}

// resolve asks apt for the packages with all that they depend on, and keeps those of which the image has files.
func (m *maker) resolve(ctx context.Context, arch string) ([]locked, error) {
	dir, err := os.MkdirTemp("", "packetwalk-image-apt-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for _, d := range []string{"state/lists/partial", "cache/archives/partial", "etc", "none"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	for name, text := range map[string]string{
		"status": "", "etc/debian.sources": fmt.Sprintf(sources, m.mirror), "apt.conf": fmt.Sprintf(settings, dir, arch),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	a := apt{dir}
	if _, err := a.get(ctx, "update", "-q", "--error-on=any"); err != nil {
		return nil, err
	}
	install := append([]string{"install", "-qq", "-y"}, nodeimage.Packages...)
	printed, err := a.get(ctx, append(install, "--print-uris")...)
	if err != nil {
		return nil, err
	}
	if _, err := a.get(ctx, append(install, "--download-only")...); err != nil {
		return nil, err
	}
	list, err := a.downloaded(arch, m.mirror, string(printed))
	if err != nil {
		return nil, err
	}
	return m.used(ctx, arch, list)
}

// An apt is a folder of apt's own.
type apt struct{ dir string }

func (a apt) get(ctx context.Context, args ...string) ([]byte, error) {
	env := append(os.Environ(), "APT_CONFIG="+filepath.Join(a.dir, "apt.conf"), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	return program.Command{Path: "apt-get", Args: args, Env: env, Limit: longestApt}.Output(ctx)
}

// downloaded are the packages that apt has downloaded and checked, of what it printed before: lines of 'ADDRESS' FILE SIZE [HASH].
func (a apt) downloaded(arch, mirror, printed string) ([]locked, error) {
	var all []locked
	for line := range strings.Lines(printed) {
		f := strings.Fields(line)
		if len(f) < 3 || !strings.HasPrefix(f[0], "'") {
			continue
		}
		address, err := url.PathUnescape(strings.Trim(f[0], "'"))
		if err != nil {
			return nil, fmt.Errorf("apt-get printed the address %s: %w", f[0], err)
		}
		path, ok := strings.CutPrefix(address, mirror+"/")
		name := strings.Split(strings.TrimSuffix(f[1], ".deb"), "_")
		if !ok || len(name) != 3 {
			return nil, fmt.Errorf("apt-get printed %q, which is no package of the mirror %s", line, mirror)
		}
		version, err := url.PathUnescape(name[1])
		if err != nil {
			return nil, fmt.Errorf("apt-get printed the file %s: %w", f[1], err)
		}
		content, err := bounded.ReadFile(filepath.Join(a.dir, "cache/archives", filepath.Base(f[1])), maxPackage)
		if err != nil {
			return nil, err
		}
		all = append(all, locked{image: arch, name: name[0], version: version, arch: name[2], size: int64(len(content)), sha256: sum(content),
			path: path})
	}
	return all, nil
}

// used are the packages of which the image has files.
func (m *maker) used(ctx context.Context, arch string, all []locked) ([]locked, error) {
	tree, err := debian(ctx, m.mirror, all)
	if err != nil {
		return nil, err
	}
	chosen, err := nodeimage.Choose(tree, arch)
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for f := range maps.Values(chosen) {
		has[f.Package] = true
	}
	return slices.DeleteFunc(all, func(l locked) bool { return !has[l.name] }), nil
}
