package sbom

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestSBOM: the document has what SPDX 2.3 asks for (its JSON schema's required fields), each package once, with a name that others refer
// to; the same contents make the same text, others another namespace.
func TestSBOM(t *testing.T) {
	built := filepath.Join("..", "..", "bin", "packetwalk-cni") // tests' own programs have no record of their modules
	if _, err := os.Stat(built); err != nil {
		kerneltest.Missing(t, "%v: make build", err)
	}
	modules, err := GoModules("v1", built)
	if err != nil {
		t.Fatal(err)
	}
	sum := strings.Repeat("ab", 32)
	of := []Contents{
		{"amd64", append([]Component{Debian("12", "libbpf1", "1:1.1.2-0+deb12u1~x", "amd64", sum)}, modules...)},
		{"arm64", []Component{Debian("12", "netbase", "6.4", "all", sum)}},
	}
	subject := Subject{"packetwalk.dev/packetwalk:v1", "v1", "CONTAINER", "", time.Unix(1764000000, 0)}
	text, err := Write(subject, of...)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := Write(subject, of...)
	if !bytes.Equal(text, again) {
		t.Error("the same contents make two texts")
	}
	var d spdxDocument
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	other, _ := Write(subject, of[0])
	if d.Version != "SPDX-2.3" || d.ID != "SPDXRef-DOCUMENT" || d.License != "CC0-1.0" || d.Creation.Created != "2025-11-24T16:00:00Z" ||
		len(d.Creation.Creators) != 1 || !strings.HasPrefix(d.Namespace, "https://") || strings.Contains(string(other), d.Namespace) {
		t.Errorf("%+v", d)
	}
	checkPackages(t, d)
	for _, want := range []string{
		`"pkg:deb/debian/libbpf1@1:1.1.2-0%2Bdeb12u1~x?arch=amd64\u0026distro=debian-12"`, `"pkg:golang/github.com/containernetworking/cni@v`,
		`"pkg:golang/packetwalk.dev@v1"`, `"pkg:golang/stdlib@1.`, `"checksumValue": "` + sum + `"`, `/usr/share/doc/libbpf1/copyright`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("it has no %s", want)
		}
	}
}

// checkPackages: names are unique, and what is related is there; each image has what is in it.
func checkPackages(t *testing.T, d spdxDocument) {
	t.Helper()
	id := regexp.MustCompile(`^SPDXRef-[a-zA-Z0-9.-]+$`)
	ids := []string{d.ID}
	for _, p := range d.Packages {
		if !id.MatchString(p.ID) || slices.Contains(ids, p.ID) || p.Name == "" || p.Version == "" || p.Download != unknown || p.Analyzed {
			t.Errorf("%+v", p)
		}
		ids = append(ids, p.ID)
	}
	contained := 0
	for _, r := range d.Relationships {
		if !slices.Contains(ids, r.Element) || !slices.Contains(ids, r.Related) {
			t.Errorf("%+v of what is not there", r)
		}
		if r.Type == "CONTAINS" {
			contained++
		}
	}
	if contained != len(d.Packages)-2 || len(d.Relationships) != len(d.Packages) {
		t.Errorf("%d packages, %d of them in images, %d relationships", len(d.Packages), contained, len(d.Relationships))
	}
}

// TestModulesOf: the project's modules have its version, also those that are nested; a module that replaces another counts in its place.
func TestModulesOf(t *testing.T) {
	info := &buildinfo.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Path: "packetwalk.dev/controlplane", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "packetwalk.dev", Version: "v0.0.0"}, {Path: "packetwalk.development/x", Version: "v1.0.0"},
			{Path: "a.example/b", Version: "v1.0.0", Replace: &debug.Module{Path: "c.example/d", Version: "v2.0.0"}},
		}}
	var got []string
	for _, c := range modulesOf("v9", info) {
		got = append(got, c.PURL)
	}
	want := []string{"pkg:golang/stdlib@1.26.8", "pkg:golang/packetwalk.dev@v9", "pkg:golang/packetwalk.development/x@v1.0.0",
		"pkg:golang/c.example/d@v2.0.0", "pkg:golang/packetwalk.dev/controlplane@v9"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
