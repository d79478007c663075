package main

import (
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/cli"
)

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
