package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

// imageContents are what an image of one architecture is made of.
type imageContents struct {
	Arch       string // GOARCH
	Components []component
}

// A component is a Debian package, a Go module or Go's standard library.
type component struct {
	Name, Version string
	PURL          string // package URL (github.com/package-url/purl-spec)
	SHA256        string // of a Debian package, in hexadecimal; "" for what has none
	Copyright     string // the file in the image that has its licence, "" for none
}

// debianComponent is one as a component. arch is Debian's name of its architecture.
func debianComponent(name, version, arch, sha256 string) component {
	return component{Name: name, Version: version, SHA256: sha256, Copyright: "/usr/share/doc/" + name + "/copyright",
		PURL: fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s&distro=debian-12", url.PathEscape(name), escaped(version), url.QueryEscape(arch))}
}

// escaped is a version as package URLs have it: all but letters, digits and -._~ escaped, and the colon not.
func escaped(version string) string {
	return strings.NewReplacer("%3A", ":", "+", "%20").Replace(url.QueryEscape(version))
}

// goModules are what Go's programs are built of, by their own record, each module once. own is what the project's own module is given as
// version.
func goModules(own string, programs ...string) ([]component, error) {
	all := map[string]component{}
	add := func(path, version string) {
		c := component{Name: path, Version: version, PURL: "pkg:golang/" + path + "@" + escaped(version)}
		all[c.PURL] = c
	}
	for _, file := range programs {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return nil, err
		}
		add("stdlib", strings.TrimPrefix(info.GoVersion, "go"))
		if info.Main.Path == module {
			info.Main.Version = own
		}
		for _, m := range append(info.Deps, &info.Main) {
			if m.Replace != nil {
				m = m.Replace
			}
			if m.Path == module {
				m.Version = own
			}
			add(m.Path, m.Version)
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b component) int { return strings.Compare(a.PURL, b.PURL) }), nil
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

// writeSBOM lists what is in an image of one or several architectures, as SPDX 2.3 JSON: the same contents make the same text.
func writeSBOM(image, version string, created time.Time, of ...imageContents) ([]byte, error) {
	d := spdxDocument{Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: image,
		Creation: spdxCreation{created.UTC().Format("2006-01-02T15:04:05Z"), []string{"Tool: packetwalk-image-" + version}}}
	relate := func(a, kind, b string) { d.Relationships = append(d.Relationships, spdxRelationship{a, kind, b}) }
	for _, c := range of {
		whole := spdxPackage{Name: image, ID: spdxID("image", c.Arch), Version: version, Download: unknown, Concluded: unknown,
			Declared: "Apache-2.0", LicenseComments: "packetwalk itself; what else is in the image has licences of its own",
			Copyright: unknown, Purpose: "CONTAINER"}
		d.Packages = append(d.Packages, whole)
		relate(d.ID, "DESCRIBES", whole.ID)
		for _, one := range slices.SortedFunc(slices.Values(c.Components), byPURL) {
			p := one.spdx(c.Arch)
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

func byPURL(a, b component) int { return cmp.Compare(a.PURL, b.PURL) }

func (c component) spdx(arch string) spdxPackage {
	p := spdxPackage{Name: c.Name, ID: spdxID("package", arch, c.PURL), Version: c.Version, Download: unknown, Concluded: unknown,
		Declared: unknown, Copyright: unknown, References: []spdxReference{{"PACKAGE-MANAGER", "purl", c.PURL}}}
	if c.SHA256 != "" {
		p.Checksums = []spdxChecksum{{"SHA256", c.SHA256}}
	}
	if c.Copyright != "" {
		p.LicenseComments = "its licence is in the image's " + c.Copyright
	}
	return p
}

// spdxID is a name in the document, of letters and digits.
func spdxID(parts ...string) string {
	return fmt.Sprintf("SPDXRef-%s-%.16x", parts[0], sha256.Sum256([]byte(strings.Join(parts, " "))))
}
