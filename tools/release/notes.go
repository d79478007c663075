package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// writeNotes writes the version's section of CHANGELOG.md, without its heading. Only pre-releases, such as v1.2.0-rc.1, may have none.
func (r *releaser) writeNotes(context.Context, string) error {
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return err
	}
	text := notes(string(changelog), r.version)
	if text == "" {
		if !strings.Contains(r.version, "-") {
			return fmt.Errorf("CHANGELOG.md has no section for %s; add one", r.version)
		}
		text = fmt.Sprintf("%s is a pre-release. CHANGELOG.md has no section for it.\n", r.version)
	}
	return os.WriteFile(filepath.Join(r.out, "NOTES.md"), []byte(text), 0o644)
}

// versionHeading is that of a version's section in CHANGELOG.md.
var versionHeading = regexp.MustCompile(`(?m)^## \[(.+?)\].*$`)

// notes returns the section of a version, or "" if the changelog has none.
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
	return ""
}
