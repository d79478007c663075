package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// upstreamModule is the module whose go.mod decides the replacements.
const upstreamModule = "k8s.io/kubernetes"

// stagingPrefix is where upstream's go.mod points the modules that it publishes from its own tree
// (https://github.com/kubernetes/kubernetes/tree/master/staging).
const stagingPrefix = "./staging/src/"

// generate returns the nested module's go.mod: current with its replace and godebug blocks made anew from upstream's go.mod.
//
// Upstream requires its staging modules at v0.0.0 and replaces them by folders, and replacements count only in the main module:
// who imports k8s.io/kubernetes must replace each of them by its published version, v0.MINOR.PATCH for release v1.MINOR.PATCH.
// The godebug lines count only in the main module too; without them the components would not run with upstream's settings.
func generate(current, upstream []byte) ([]byte, error) {
	file, err := modfile.Parse("controlplane/go.mod", current, nil)
	if err != nil {
		return nil, err
	}
	source, err := modfile.Parse(upstreamModule+"/go.mod", upstream, nil)
	if err != nil {
		return nil, err
	}
	release, err := kubernetesVersion(file)
	if err != nil {
		return nil, err
	}
	staging, err := stagingVersion(release)
	if err != nil {
		return nil, err
	}
	published := stagingModules(source)
	if err := replaceStaging(file, published, staging); err != nil {
		return nil, err
	}
	if err := copyGodebug(file, source); err != nil {
		return nil, err
	}
	if err := requireStaging(file, published, staging); err != nil {
		return nil, err
	}
	file.SortBlocks()
	file.Cleanup()
	return file.Format()
}

// replaceStaging makes the published modules the only ones replaced, each by itself at version, in one block at the end. Modules replaced
// by folders of this checkout stay so.
func replaceStaging(file *modfile.File, published []string, version string) error {
	for _, replace := range slices.Clone(file.Replace) {
		if replace.New.Version == "" {
			continue
		}
		if err := file.DropReplace(replace.Old.Path, replace.Old.Version); err != nil {
			return err
		}
	}
	// Not with AddReplace: it writes a statement for each where there is no block yet.
	block := &modfile.LineBlock{Token: []string{"replace"}}
	for _, path := range published {
		block.Line = append(block.Line, &modfile.Line{Token: []string{path, "=>", path, version}, InBlock: true})
	}
	file.Cleanup()
	file.Syntax.Stmt = append(file.Syntax.Stmt, block)
	return nil
}

// copyGodebug makes the godebug settings those of source.
func copyGodebug(file, source *modfile.File) error {
	wanted := make(map[string]string)
	for _, debug := range source.Godebug {
		wanted[debug.Key] = debug.Value
	}
	for _, debug := range slices.Clone(file.Godebug) {
		if _, ok := wanted[debug.Key]; ok {
			continue
		}
		if err := file.DropGodebug(debug.Key); err != nil {
			return err
		}
	}
	for key, value := range wanted {
		if err := file.AddGodebug(key, value); err != nil {
			return err
		}
	}
	return nil
}

// kubernetesVersion returns the release that the module requires, as "v1.35.8".
func kubernetesVersion(file *modfile.File) (string, error) {
	for _, require := range file.Require {
		if require.Mod.Path == upstreamModule {
			return require.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("%s does not require %s: add the line that names the release", file.Syntax.Name, upstreamModule)
}

// stagingVersion returns the version of the staging modules of a release: v0.35.8 for v1.35.8.
func stagingVersion(release string) (string, error) {
	rest, ok := strings.CutPrefix(release, "v1.")
	if !ok {
		return "", fmt.Errorf("%s %s: not a v1 release", upstreamModule, release)
	}
	return "v0." + rest, nil
}

// stagingModules returns the modules that upstream publishes from its own tree, in its order.
func stagingModules(upstream *modfile.File) []string {
	var paths []string
	for _, replace := range upstream.Replace {
		if strings.HasPrefix(replace.New.Path, stagingPrefix) {
			paths = append(paths, replace.Old.Path)
		}
	}
	return paths
}

// requireStaging brings the lines that require staging modules to the version that replaces them, so that go.mod does not say one thing and
// mean another.
func requireStaging(file *modfile.File, published []string, version string) error {
	for _, require := range slices.Clone(file.Require) {
		if !slices.Contains(published, require.Mod.Path) {
			continue
		}
		if err := file.AddRequire(require.Mod.Path, version); err != nil {
			return err
		}
	}
	return nil
}

// writeModule does gen: it writes a new go.mod and lets the go command complete the indirect requirements and go.sum.
func writeModule(ctx context.Context, dir string) error {
	path := filepath.Join(dir, "go.mod")
	current, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	upstream, err := upstreamGoMod(ctx, dir, current)
	if err != nil {
		return err
	}
	text, err := generate(current, upstream)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return err
	}
	_, err = goCommand(ctx, dir, "mod", "tidy")
	return err
}

// upstreamGoMod reads the go.mod of the required release out of the module cache; the go command fetches it when it is not there.
func upstreamGoMod(ctx context.Context, dir string, current []byte) ([]byte, error) {
	file, err := modfile.Parse(filepath.Join(dir, "go.mod"), current, nil)
	if err != nil {
		return nil, err
	}
	release, err := kubernetesVersion(file)
	if err != nil {
		return nil, err
	}
	path, err := goCommand(ctx, dir, "list", "-m", "-mod=mod", "-f", "{{.GoMod}}", upstreamModule+"@"+release)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}
