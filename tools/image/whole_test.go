package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"packetwalk.dev/internal/base/imageref"
	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/testing/kerneltest"
	"packetwalk.dev/internal/testing/layertest"
)

// TestWhole holds the archive that make image wrote, $IMAGE, against what it should be: whole by go-containerregistry's own checks, for two
// architectures, each with programs for it alone; and a store takes this machine's, whose programs run.
func TestWhole(t *testing.T) {
	file, version := os.Getenv("IMAGE"), os.Getenv("IMAGE_VERSION")
	if file == "" {
		t.Skip("make test-image sets IMAGE")
	}
	kerneltest.NeedRoot(t)
	store, err := images.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := store.Load(t.Context(), file)
	if err != nil || loaded[0].Name != imageref.Image(version) {
		t.Fatal(loaded, err)
	}
	layers := layertest.Unpack(t, store.Blob, loaded[0].Digest)
	runAll(t, layers[0])
	own := layers[1]
	for _, name := range []string{"usr/bin/packetwalk", "usr/bin/kubectl-packetwalk", "usr/bin/packetwalk-node"} {
		out, err := program.Command{Path: filepath.Join(own, name), Args: []string{"--version"}}.Output(t.Context())
		if err != nil || !strings.Contains(string(out), version) {
			t.Errorf("%s: %v, %.100q", name, err, out)
		}
	}
	checkIndex(t, file)
}

// machines are the architectures that images are made for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// checkIndex looks at all architectures.
func checkIndex(t *testing.T, file string) {
	t.Helper()
	dir := t.TempDir()
	if _, err := (program.Command{Path: "tar", Args: []string{"-xf", file, "-C", dir}}).Output(t.Context()); err != nil {
		t.Fatal(err)
	}
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := outer.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatalf("%d images by name, %v", len(m.Manifests), err)
	}
	index, err := outer.ImageIndex(m.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	if m, err = index.IndexManifest(); err != nil || len(m.Manifests) != len(machines) {
		t.Fatalf("%d architectures, %v", len(m.Manifests), err)
	}
	for _, d := range m.Manifests {
		img, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkPrograms(t, img, machines[d.Platform.Architecture])
	}
}

// checkPrograms: all programs and libraries are for a processor and find the libraries that they need. Ours are static. All links lead to a
// file.
func checkPrograms(t *testing.T, img v1.Image, machine elf.Machine) {
	t.Helper()
	files := mutate.Extract(img)
	defer files.Close()
	has, needed, links, count := map[string]bool{}, map[string]string{}, map[string]string{}, 0
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := path.Clean(h.Name)
		has["/"+name] = true
		if target := h.Linkname; target != "" {
			if !path.IsAbs(target) {
				target = path.Join("/", path.Dir(name), target)
			}
			links["/"+name] = inUsr(target)
		}
		if dir := path.Dir(name); dir == "usr/lib/ebtables" || strings.HasSuffix(dir, "-linux-gnu") { // the first by ebtables-legacy's RUNPATH
			has[path.Base(name)] = true
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil { // it is no program
			continue
		}
		count++
		needs, err := f.ImportedLibraries()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, lib := range needs {
			needed[lib] = name
		}
		ours := strings.HasPrefix(path.Base(name), "packetwalk")
		if f.Machine != machine || ours && len(needs) > 0 {
			t.Errorf("%s is for %s, and should be for %s; it needs %v", name, f.Machine, machine, needs)
		}
	}
	if count < 100 {
		t.Errorf("%d programs and libraries", count)
	}
	for name, target := range links {
		if !has[target] {
			t.Errorf("link %s leads to %s, which is not in the image", name, target)
		}
	}
	for lib, name := range needed {
		if !has[lib] {
			t.Errorf("%s needs %s, which is not in the image", name, lib)
		}
	}
	for _, p := range packages {
		if !has["/usr/share/doc/"+p+"/copyright"] && !has["/usr/share/doc/"+p] || !has[records+p] {
			t.Errorf("it has no licence or no record of %s", p)
		}
	}
	for _, name := range []string{"/usr/share/sbom/packetwalk.spdx.json", certificates, "/etc/passwd"} {
		if !has[name] {
			t.Errorf("it has no %s", name)
		}
	}
}
