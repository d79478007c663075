package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/cli"
)

var digest = "sha256:" + strings.Repeat("ab", 32)

func TestInvalidVersion(t *testing.T) {
	for _, version := range []string{"", "dev", "0.2.0", "v0.2", "v0.2.0+build", "v01.2.0", "v0.2.0-", "v0.2.0\n", "5d97fb75-dirty"} {
		r := releaser{version: version, out: t.TempDir()}
		if err := r.check(t.Context()); err == nil || !strings.Contains(err.Error(), "VERSION=v1.2.0") {
			t.Errorf("version %q: %v", version, err)
		}
	}
	for _, version := range []string{"v0.2.0", "v10.0.0-rc.1"} {
		if !versions.MatchString(version) {
			t.Errorf("version %q is refused", version)
		}
	}
}

// imageLayout returns an archive with the given index.json, between other files; "" is for none.
func imageLayout(t *testing.T, index string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range map[string]string{"oci-layout": "{}", "index.json": index, "blobs/sha256/ab": "x"} {
		if text == "" {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(text)), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestImageDigest(t *testing.T) {
	one := fmt.Sprintf(`{"digest": %q, "size": 1}`, digest)
	if got, err := imageDigest(imageLayout(t, `{"manifests": [`+one+`]}`)); err != nil || got != digest {
		t.Errorf("%s, %v", got, err)
	}
	for name, index := range map[string]string{
		"no index":     "",
		"no image":     `{"manifests": []}`,
		"two images":   `{"manifests": [` + one + "," + one + `]}`,
		"not JSON":     "x",
		"not a digest": `{"manifests": [{"digest": "latest"}]}`,
		"endless":      `{"manifests": [` + strings.Repeat(" ", maxIndex) + one + `]}`,
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := imageDigest(imageLayout(t, index)); err == nil {
				t.Errorf("digest %s", got)
			}
		})
	}
}

// TestStamp: each manifest of the repository gets the digest at each of its containers, and nowhere else.
func TestStamp(t *testing.T) {
	files, err := filepath.Glob("../../deploy/manifests/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	image := "packetwalk.dev/packetwalk:v1.2.0@" + digest
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		stamped, err := stamp(text, image)
		if err != nil {
			t.Fatal(err)
		}
		if want, got := bytes.Count(text, []byte(" image: ")), bytes.Count(stamped, []byte(" image: "+image+"\n")); want != got {
			t.Errorf("%s: %d of %d images", file, got, want)
		}
		reverted := bytes.ReplaceAll(stamped, []byte("image: "+image), []byte("image: packetwalk.dev/packetwalk:VERSION"))
		if !bytes.Equal(reverted, text) {
			t.Errorf("%s: more than images was replaced", file)
		}
	}
	if _, err := stamp([]byte("kind: Pod\n"), image); err == nil {
		t.Error("stamped a manifest without an image")
	}
}

// TestWriteArchive: the same files make the same archive, whatever their times and modes are.
func TestWriteArchive(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	var archives [2][]byte
	for i := range archives {
		if err := errors.Join(os.RemoveAll(program), os.WriteFile(program, []byte("ELF"), 0o600+os.FileMode(i)),
			os.Chtimes(program, time.Time{}, time.Unix(int64(i), 0))); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "a.tar.gz")
		if err := writeArchive(file, []archiveFile{{"kubectl-packetwalk", program, 0o755}}, time.Unix(1700000000, 0)); err != nil {
			t.Fatal(err)
		}
		var err error
		if archives[i], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the second archive differs")
	}
	zip, err := gzip.NewReader(bytes.NewReader(archives[0]))
	if err != nil {
		t.Fatal(err)
	}
	h, err := tar.NewReader(zip).Next()
	if err != nil || h.Name != "kubectl-packetwalk" || h.Mode != 0o755 || h.Uid != 0 || h.Uname != "" || h.ModTime.Unix() != 1700000000 {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestSums(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b": "", "a": "abc"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := releaser{out: dir}
	if err := r.writeSums(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	want := "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n" +
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  b\n"
	if err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
}

func TestCopyLab(t *testing.T) {
	r := releaser{lab: t.TempDir(), out: t.TempDir()}
	const name = "packetwalk-lab_linux_amd64.tar.zst"
	if err := errors.Join(os.WriteFile(filepath.Join(r.lab, name), []byte("zstd"), 0o600), r.copyLab(t.Context(), digest)); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(r.out, name)); err != nil || string(text) != "zstd" {
		t.Errorf("%q, %v", text, err)
	}
	r.lab = ""
	if err := r.copyLab(t.Context(), digest); err != nil {
		t.Error(err)
	}
}

// TestWriteSBOMs: each archive has an SBOM with its checksum, and an image of labs that of its archive's contents.
func TestWriteSBOMs(t *testing.T) {
	r := releaser{version: "v0.2.0", out: t.TempDir()}
	license := []archiveFile{{"LICENSE", "../../LICENSE", 0o644}}
	for _, name := range []string{"kubectl-packetwalk_darwin_arm64.tar.gz", "packetwalk_linux_amd64.tar.gz"} {
		if err := writeArchive(filepath.Join(r.out, name), license, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
	}
	pack := exec.Command("tar", "--zstd", "-cf", filepath.Join(r.out, "packetwalk-lab_linux_arm64.tar.zst"), "-C", "../..", "LICENSE")
	if out, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"packetwalk-lab-image_linux_arm64.tar", "packetwalk-0.2.0.tgz"} {
		if err := os.WriteFile(filepath.Join(r.out, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.writeSBOMs(t.Context(), digest); err != nil {
		t.Fatal(err)
	}
	sums, err := sums(r.out)
	if err != nil {
		t.Fatal(err)
	}
	for name, purpose := range map[string]string{
		"kubectl-packetwalk_darwin_arm64.tar.gz": "ARCHIVE", "packetwalk_linux_amd64.tar.gz": "ARCHIVE",
		"packetwalk-lab_linux_arm64.tar.zst": "ARCHIVE", "packetwalk-lab-image_linux_arm64.tar": "CONTAINER",
	} {
		base, _, _ := strings.Cut(name, ".tar")
		text, err := os.ReadFile(filepath.Join(r.out, base+".spdx.json"))
		if err != nil {
			t.Error(err)
		}
		for _, want := range []string{`"name": "` + name + `"`, `"primaryPackagePurpose": "` + purpose + `"`, sums[name]} {
			if !bytes.Contains(text, []byte(want)) {
				t.Errorf("the SBOM of %s lacks %s: %s", name, want, text)
			}
		}
	}
	if len(sums) != 9 {
		t.Errorf("%d files, want 5 and 4 SBOMs: %v", len(sums), sums)
	}
}

// krewPlugin is krew's type as far as it may be used here (sigs.k8s.io/krew, pkg/index: types.go).
type krewPlugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string `json:"version"`
		Homepage         string `json:"homepage"`
		ShortDescription string `json:"shortDescription"`
		Description      string `json:"description"`
		Caveats          string `json:"caveats"`
		Platforms        []struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			URI    string `json:"uri"`
			SHA256 string `json:"sha256"`
			Bin    string `json:"bin"`
			Files  []struct {
				From string `json:"from"`
				To   string `json:"to"`
			} `json:"files"`
		} `json:"platforms"`
	} `json:"spec"`
}

// TestKrew: the manifest, filled in, is one that krew takes (internal/index/validation: validate.go), and its binary is the plugin.
func TestKrew(t *testing.T) {
	sums := map[string]string{}
	for i, p := range platforms {
		sums[p.Archive()] = strings.Repeat(string("abcdef"[i]), 64)
	}
	text, err := krewManifest("../../deploy/krew/packetwalk.yaml", "v0.1.0", "https://example.com/v0.1.0", sums)
	if err != nil {
		t.Fatal(err)
	}
	var plugin krewPlugin
	if err := yaml.UnmarshalStrict(text, &plugin); err != nil {
		t.Fatal(err)
	}
	name := plugin.Metadata.Name
	if plugin.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || plugin.Kind != "Plugin" || !cli.IsPlugin("kubectl-"+name) {
		t.Errorf("%s %s %q", plugin.APIVersion, plugin.Kind, name)
	}
	if short := plugin.Spec.ShortDescription; plugin.Spec.Version != "v0.1.0" || short == "" || len(short) > 50 {
		t.Errorf("version %q, short description %q", plugin.Spec.Version, short)
	}
	var got []platform
	for _, p := range plugin.Spec.Platforms {
		got = append(got, platform{p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"]})
		uri, err := url.Parse(p.URI)
		if err != nil || uri.Scheme != "https" || p.SHA256 == "" || sums[path.Base(uri.Path)] != p.SHA256 {
			t.Errorf("archive %s, %s: %v", p.URI, p.SHA256, err)
		}
		var files []string
		for _, f := range p.Files {
			files = append(files, f.From)
		}
		if !cli.IsPlugin(p.Bin) || p.Bin != "kubectl-packetwalk" && p.Selector.MatchLabels["os"] != "windows" || !slices.Contains(files, p.Bin) {
			t.Errorf("binary %q of files %q", p.Bin, files)
		}
	}
	if !slices.Equal(got, platforms) {
		t.Errorf("platforms %v", got)
	}
	delete(sums, platforms[0].Archive())
	if _, err := krewManifest("../../deploy/krew/packetwalk.yaml", "v0.1.0", "https://example.com/v0.1.0", sums); err == nil {
		t.Error("a manifest without the checksum of an archive")
	}
}
