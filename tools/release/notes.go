package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// writeNotes writes the version's section of CHANGELOG.md, without its heading.
func (r *releaser) writeNotes(context.Context, string) error {
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "NOTES.md"), []byte(notes(string(changelog), r.version)), 0o644)
}

// versionHeading is that of a version's section in CHANGELOG.md.
var versionHeading = regexp.MustCompile(`(?m)^## \[(.+?)\].*$`)

// notes returns the section of a version, or a sentence if the changelog has none, as for a release candidate.
func notes(changelog, version string) string {
	sections := versionHeading.FindAllStringSubmatchIndex(changelog, -1)
	for i, s := range sections {
		if changelog[s[2]:s[3]] != strings.TrimPrefix(version, "v") {
			continue
		}
		end := len(changelog)
		if i+1 < len(sections) {
			end = sections[i+1][0]
		}
		return strings.TrimSpace(changelog[s[1]:end]) + "\n"
	}
	return fmt.Sprintf("CHANGELOG.md has no section for %s.\n", version)
}
