// Package sbom writes what images and archives are made of, as documents of SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/). Contents that
// are the same make the same document.
package sbom

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// A Subject is the image or archive that a document describes.
type Subject struct {
	Name, Version string
	Purpose       string // CONTAINER or ARCHIVE: SPDX's primaryPackagePurpose
	SHA256        string // of the file of that name, in hexadecimal; "" for what is no file
	Created       time.Time
}

// Contents are what an image or archive of one platform is made of.
type Contents struct {
	Platform   string // GOARCH, or GOOS/GOARCH
	Components []Component
}

// A Component is a Debian package, a Go module or Go's standard library.
type Component struct {
	Name, Version string
	PURL          string // package URL (github.com/package-url/purl-spec)
	SHA256        string // of a Debian package, in hexadecimal; "" for what has none
	Copyright     string // the file in the image or root that has its licence, "" for none
}

// Debian returns a package of a Debian release ("12") as a component. arch is Debian's name of its architecture, sha256 may be "".
func Debian(release, name, version, arch, sha256 string) Component {
	return Component{Name: name, Version: version, SHA256: sha256, Copyright: "/usr/share/doc/" + name + "/copyright",
		PURL: fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=debian-%s", url.PathEscape(name), escaped(version), url.QueryEscape(arch), release)}
}

// escaped returns a version as package URLs have it: all but letters, digits and -._~ escaped, and the colon not.
func escaped(version string) string {
	return strings.NewReplacer("%3A", ":", "+", "%20").Replace(url.QueryEscape(version))
}

// GoModules returns the modules of Go programs, each once, as the programs record them. own is the version that the project's modules get.
func GoModules(own string, programs ...string) ([]Component, error) {
	var all []Component
	for _, file := range programs {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return nil, err
		}
		all = append(all, modulesOf(own, info)...)
	}
	return sorted(all), nil
}

// modulesOf returns the modules of one program, and Go's standard library.
func modulesOf(own string, info *buildinfo.BuildInfo) []Component {
	all := []Component{goModule("stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Replace != nil {
			m = m.Replace
		}
		version := m.Version
		if m.Path == module || strings.HasPrefix(m.Path, module+"/") {
			version = own
		}
		all = append(all, goModule(m.Path, version))
	}
	return all
}

func goModule(path, version string) Component {
	return Component{Name: path, Version: version, PURL: "pkg:golang/" + path + "@" + escaped(version)}
}

// sorted sorts by PURL, and keeps each component once.
func sorted(all []Component) []Component {
	slices.SortFunc(all, func(a, b Component) int { return cmp.Compare(a.PURL, b.PURL) })
	return slices.CompactFunc(all, func(a, b Component) bool { return a.PURL == b.PURL })
}

const module = "packetwalk.dev"

// The parts of a document of SPDX 2.3 that are written (https://spdx.github.io/spdx-spec/v2.3/).
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		License       string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		Name            string          `json:"name"`
		ID              string          `json:"SPDXID"`
		Version         string          `json:"versionInfo"`
		FileName        string          `json:"packageFileName,omitempty"`
		Download        string          `json:"downloadLocation"`
		Analyzed        bool            `json:"filesAnalyzed"`
		Checksums       []spdxChecksum  `json:"checksums,omitempty"`
		Concluded       string          `json:"licenseConcluded"`
		Declared        string          `json:"licenseDeclared"`
		LicenseComments string          `json:"licenseComments,omitempty"`
		Copyright       string          `json:"copyrightText"`
		References      []spdxReference `json:"externalRefs,omitempty"`
		Purpose         string          `json:"primaryPackagePurpose,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxReference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

const unknown = "NOASSERTION"

// Write lists what is in an image or archive of one or several platforms, as SPDX 2.3 JSON.
func Write(s Subject, of ...Contents) ([]byte, error) {
	d := spdxDocument{Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: s.Name,
		Creation: spdxCreation{s.Created.UTC().Format("2006-01-02T15:04:05Z"), []string{"Tool: packetwalk-sbom-" + s.Version}}}
	relate := func(a, kind, b string) { d.Relationships = append(d.Relationships, spdxRelationship{a, kind, b}) }
	for _, c := range of {
		whole := spdxPackage{Name: s.Name, ID: spdxID("subject", c.Platform), Version: s.Version, Download: unknown, Concluded: unknown,
			Declared: "Apache-2.0", LicenseComments: "packetwalk itself; its other contents have their own licences",
			Copyright: unknown, Purpose: s.Purpose}
		if s.SHA256 != "" {
			whole.FileName, whole.Checksums = s.Name, []spdxChecksum{{"SHA256", s.SHA256}}
		}
		d.Packages = append(d.Packages, whole)
		relate(d.ID, "DESCRIBES", whole.ID)
		for _, one := range sorted(slices.Clone(c.Components)) {
			p := one.spdx(c.Platform)
			d.Packages = append(d.Packages, p)
			relate(whole.ID, "CONTAINS", p.ID)
		}
	}
	body, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	d.Namespace = fmt.Sprintf("https://packetwalk.dev/spdx/%x", sha256.Sum256(body))
	return json.MarshalIndent(d, "", " ")
}

func (c Component) spdx(platform string) spdxPackage {
	p := spdxPackage{Name: c.Name, ID: spdxID("package", platform, c.PURL), Version: c.Version, Download: unknown, Concluded: unknown,
		Declared: unknown, Copyright: unknown, References: []spdxReference{{"PACKAGE-MANAGER", "purl", c.PURL}}}
	if c.SHA256 != "" {
		p.Checksums = []spdxChecksum{{"SHA256", c.SHA256}}
	}
	if c.Copyright != "" {
		p.LicenseComments = "its licence is in " + c.Copyright
	}
	return p
}

// spdxID returns a name in the document, of letters and digits.
func spdxID(parts ...string) string {
	return fmt.Sprintf("SPDXRef-%s-%.16x", parts[0], sha256.Sum256([]byte(strings.Join(parts, " "))))
}
