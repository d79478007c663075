package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/imageref"
	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/tools/sbom"
)

// programs are what is built, by their paths in the image.
var programs = map[string]string{
	"usr/bin/packetwalk":      "./cmd/packetwalk",
	"usr/bin/packetwalk-node": "./cmd/packetwalk-node",
}

// A maker makes the image.
type maker struct {
	options
	root, lock string
	created    time.Time
	revision   string
}

func (m *maker) make(ctx context.Context) error {
	all, err := readLock(m.lock)
	if err != nil {
		return err
	}
	if err := m.source(ctx); err != nil {
		return err
	}
	var made []v1.Image
	var contents []sbom.Contents
	for _, arch := range m.archs {
		img, c, err := m.image(ctx, arch, slices.DeleteFunc(slices.Clone(all), func(l lockedPackage) bool { return l.image != arch }))
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		made, contents = append(made, img), append(contents, c)
	}
	index, err := makeIndex(m.labels(), made...)
	if err != nil {
		return err
	}
	return m.deliver(ctx, index, made, contents)
}

// source finds which commit is built, and its time: SOURCE_DATE_EPOCH's where that is set (https://reproducible-builds.org/specs).
func (m *maker) source(ctx context.Context) error {
	m.created = time.Unix(0, 0)
	out, err := program.Command{Path: "git", Args: []string{"-C", m.root, "log", "-1", "--format=%H %ct"}}.Output(ctx)
	if f := strings.Fields(string(out)); err == nil && len(f) == 2 { // else it is no checkout
		seconds, _ := strconv.ParseInt(f[1], 10, 64) // git's own
		m.revision, m.created = f[0], time.Unix(seconds, 0)
	}
	if set := os.Getenv("SOURCE_DATE_EPOCH"); set != "" {
		seconds, err := strconv.ParseInt(set, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH=%q is no number of seconds", set)
		}
		m.created = time.Unix(seconds, 0)
	}
	m.created = m.created.UTC()
	return nil
}

// labels returns the labels of the OCI image specification (annotations.md).
func (m *maker) labels() map[string]string {
	const prefix = "org.opencontainers.image."
	labels := map[string]string{
		prefix + "title": "packetwalk", prefix + "description": "packetwalk's programs for nodes, and Debian's that they call",
		prefix + "source": "https://packetwalk.dev", prefix + "version": m.version, prefix + "licenses": "Apache-2.0",
		prefix + "created": m.created.Format(time.RFC3339),
	}
	if m.revision != "" {
		labels[prefix+"revision"] = m.revision
	}
	return labels
}

func (m *maker) image(ctx context.Context, arch string, packages []lockedPackage) (v1.Image, sbom.Contents, error) {
	c := sbom.Contents{Platform: arch}
	if len(packages) == 0 {
		return nil, c, fmt.Errorf("%s has no packages for it: make image LOCK=update ARCH=%s", lockFile, arch)
	}
	debian, err := debianFiles(ctx, m.mirror, packages)
	if err != nil {
		return nil, c, err
	}
	files, err := m.build(ctx, arch)
	if err != nil {
		return nil, c, err
	}
	for _, l := range packages {
		c.Components = append(c.Components, sbom.Debian("12", l.name, l.version, l.arch, l.sha256))
	}
	modules, err := sbom.GoModules(m.version, slices.Sorted(maps.Values(files))...)
	if err != nil {
		return nil, c, err
	}
	c.Components = append(c.Components, modules...)
	list, err := sbom.Write(m.subject(), c)
	if err != nil {
		return nil, c, err
	}
	own := []images.File{
		{Path: "/usr/bin/kubectl-packetwalk", Link: "packetwalk"},
		{Path: "/usr/share/sbom/packetwalk.spdx.json", Text: string(list)},
		{Path: "/usr/share/doc/packetwalk/copyright", Source: filepath.Join(m.root, "LICENSE"), Mode: 0o644},
	}
	for name, source := range files {
		own = append(own, images.File{Path: "/" + name, Source: source})
	}
	fmt.Fprintf(os.Stderr, "writing the image for %s\n", arch)
	img, err := makeImage(ctx, recipe{arch, debian, own, m.labels(), m.created})
	return img, c, err
}

// subject returns the image, for the list of what is in it.
func (m *maker) subject() sbom.Subject {
	return sbom.Subject{Name: imageref.Image(m.version), Version: m.version, Purpose: "CONTAINER", Created: m.created}
}

// environment returns the environment of the compiler. It leaves out this machine's settings of the processor and of the build: the image
// runs on all, and is the same from all. GOFLAGS is not empty because that would mean what "go env -w" has written.
func environment(arch string) []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOWORK=off",
		"GOFLAGS=-trimpath", "GOFIPS140=off")
}

// build compiles the programs for an architecture, and gives their files by their paths in the image.
func (m *maker) build(ctx context.Context, arch string) (map[string]string, error) {
	fmt.Fprintf(os.Stderr, "building the programs for %s (minutes the first time)\n", arch)
	dir := filepath.Join(m.root, "bin", "image", arch)
	args := []string{"build", "-buildvcs=false", "-ldflags", m.ldflags, "-o", dir + "/"}
	command := exec.CommandContext(ctx, "go", append(args, slices.Sorted(maps.Values(programs))...)...)
	command.Dir, command.Stdout, command.Stderr = m.root, os.Stderr, os.Stderr
	command.Env = environment(arch)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt ends it as a whole
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGINT) }
	command.WaitDelay = 5 * time.Second
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(command.Args, " "), err)
	}
	files := map[string]string{}
	for name, source := range programs {
		files[name] = filepath.Join(dir, filepath.Base(source))
	}
	return files, nil
}

// deliver writes the archive and the list of what is in it, pushes, and says so.
func (m *maker) deliver(ctx context.Context, index v1.ImageIndex, made []v1.Image, contents []sbom.Contents) error {
	image := imageref.Image(m.version)
	list, err := sbom.Write(m.subject(), contents...)
	if err != nil {
		return err
	}
	if err := writeArchive(ctx, m.archive, image, index, made); err != nil {
		return err
	}
	listFile := strings.TrimSuffix(m.archive, ".tar") + ".spdx.json"
	if err := atomicfile.Write(listFile, list, 0o644); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s  %s\n", image, digest)
	for n, img := range made {
		if err := describe(img, m.archs[n]); err != nil {
			return err
		}
	}
	fmt.Printf("%s, and what is in it: %s\n", m.archive, listFile)
	if m.push == "" {
		return nil
	}
	return m.pushTo(ctx, index, digest)
}

// describe prints the sizes of an image's layers.
func describe(img v1.Image, arch string) error {
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	var all int64
	var sizes []string
	for _, l := range layers {
		size, err := l.Size()
		if err != nil {
			return err
		}
		all += size
		sizes = append(sizes, fmt.Sprintf("%.1f MB", float64(size)/1e6))
	}
	fmt.Printf("linux/%s  %.1f MB: Debian's programs %s\n", arch, float64(all)/1e6, strings.Join(sizes, ", packetwalk's "))
	return nil
}

func (m *maker) pushTo(ctx context.Context, index v1.ImageIndex, digest v1.Hash) error {
	ref, err := name.ParseReference(m.push, name.WithDefaultTag(strings.TrimPrefix(imageref.Image(m.version), imageref.Repository+":")))
	if err != nil {
		return fmt.Errorf("PUSH=%s: %w", m.push, err)
	}
	if _, ok := ref.(name.Tag); !ok {
		return errors.New("PUSH names a digest, which is the image's to give: write REGISTRY/NAME[:TAG]")
	}
	fmt.Fprintf(os.Stderr, "pushing %s\n", ref)
	if err := remote.WriteIndex(ref, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("push %s: %w; log in with docker login", ref, err)
	}
	fmt.Printf("pushed %s@%s\n", ref, digest)
	return nil
}
