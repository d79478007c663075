package main

import "testing"

func TestNotes(t *testing.T) {
	const changelog = "# Changelog\n\n## [0.2.0] – unreleased\n\n### Added\n\n- b\n\n## [0.1.0] – 2026-01-01\n\n- a\n"
	for version, want := range map[string]string{
		"v0.2.0":      "### Added\n\n- b\n",
		"v0.1.0":      "- a\n",
		"v0.1.0-rc.1": "",
		"v010":        "",
	} {
		t.Run(version, func(t *testing.T) {
			if got := notes(changelog, version); got != want {
				t.Errorf("notes %q, want %q", got, want)
			}
		})
	}
}
