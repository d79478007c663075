package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/base/program"
)

// sources are Debian's, and whose signatures apt asks for; what this machine has installed, and which Debian it is, does not matter.
const sources = `Types: deb
URIs: %[1]s/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: %[1]s/debian-security
Suites: trixie-security
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

// renew writes packages.lock anew, with the versions that Debian has now.
func (m *maker) renew(ctx context.Context) error {
	var all []lockedPackage
	for _, arch := range m.archs {
		fmt.Fprintf(os.Stderr, "asking %s for packages for %s\n", m.mirror, arch)
		list, err := m.resolve(ctx, arch)
		if err != nil {
			return err
		}
		all = append(all, list...)
	}
	if old, err := readLock(m.lock); err == nil { // those of architectures that are not built now stay
		all = append(all, slices.DeleteFunc(old, func(l lockedPackage) bool { return slices.Contains(m.archs, l.image) })...)
	}
	return writeLock(m.lock, all, time.Now().UTC().Format(time.DateOnly))
}

// resolve asks apt for the newest versions of the packages and their digests, which Debian has signed.
func (m *maker) resolve(ctx context.Context, arch string) ([]lockedPackage, error) {
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
	env := append(os.Environ(), "APT_CONFIG="+filepath.Join(dir, "apt.conf"), "LC_ALL=C")
	apt := func(args ...string) ([]byte, error) {
		return program.Command{Path: "apt-get", Args: args, Env: env, Limit: longestApt}.Output(ctx)
	}
	if _, err := apt("update", "-q", "--error-on=any"); err != nil {
		return nil, err
	}
	printed, err := apt(append([]string{"download", "--print-uris"}, packages...)...)
	if err != nil {
		return nil, err
	}
	return parseURIs(arch, m.mirror, string(printed))
}

// parseURIs reads what apt-get download prints: lines of 'ADDRESS' FILE SIZE SHA256:DIGEST, where FILE is NAME_VERSION_ARCH.deb.
func parseURIs(arch, mirror, printed string) ([]lockedPackage, error) {
	var all []lockedPackage
	for line := range strings.Lines(printed) {
		f := strings.Fields(line)
		if len(f) != 4 {
			return nil, fmt.Errorf("apt-get printed %q, which is not the address of a package", line)
		}
		address, err := url.PathUnescape(strings.Trim(f[0], "'"))
		if err != nil {
			return nil, fmt.Errorf("apt-get printed the address %s: %w", f[0], err)
		}
		path, ok := strings.CutPrefix(address, mirror+"/")
		digest, isSHA256 := strings.CutPrefix(f[3], "SHA256:")
		name := strings.Split(strings.TrimSuffix(f[1], ".deb"), "_")
		if !ok || !isSHA256 || len(name) != 3 {
			return nil, fmt.Errorf("apt-get printed %q, which is no package of the mirror %s with its SHA-256 digest", line, mirror)
		}
		version, err := url.PathUnescape(name[1])
		if err != nil {
			return nil, fmt.Errorf("apt-get printed the file %s: %w", f[1], err)
		}
		l, err := parseLocked(strings.Join([]string{arch, name[0], version, name[2], f[2], digest, path}, " "))
		if err != nil {
			return nil, fmt.Errorf("apt-get printed %q: %w", line, err)
		}
		all = append(all, l)
	}
	return all, nil
}
