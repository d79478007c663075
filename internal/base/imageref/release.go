// Package imageref names what a version of packetwalk is published as.
package imageref

import "strings"

// Repository is the name of the image with the programs, without its tag.
const Repository = "packetwalk.dev/packetwalk"

// Image returns the name of the image with the programs of a version, as git describe or a module's version writes it
// ("v0.12.0-3-gb393b40-dirty", "v1.2.0+build"), which is its tag. What a tag cannot have (OCI distribution specification, "Pulling
// manifests") becomes "-"; no version at all is "dev".
func Image(version string) string { return Repository + ":" + Tag(version) }

// Digest is the digest of the image of this program's version. The linker sets it in a release's plugin ("make release"); the image's own
// programs cannot know it.
var Digest string

// Pinned returns the image that nodes run: [Image], in a release's plugin with the digest that was published.
func Pinned(version string) string {
	if Digest == "" {
		return Image(version)
	}
	return Image(version) + "@" + Digest
}

// longest is how many bytes a tag may have.
const longest = 128

// Tag returns the tag of the image of a version.
func Tag(version string) string {
	valid := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '.', r == '-':
			return r
		}
		return '-'
	}, version)
	valid = strings.TrimLeft(valid, ".-") // a tag does not begin so
	if valid == "" {
		return "dev"
	}
	return valid[:min(len(valid), longest)]
}
