// Command release writes what a version of packetwalk publishes into bin/release: the image, the plugin and the node's programs for amd64
// and arm64, the Helm chart, the manifests, krew's manifest, SBOMs, the release notes, and the checksums. Plugin, chart and manifests
// name the image by its digest. The same commit and the same version give the same bytes. make release runs it:
//
//	go run ./tools/release -version v1.2.0 -ldflags FLAGS -base URL -- COMMAND that makes bin/packetwalk-image.tar
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"packetwalk.dev/internal/base/imageref"
	"packetwalk.dev/tools/sbom"
)

const (
	imageArchive = "bin/packetwalk-image.tar"
	imageSBOM    = "bin/packetwalk-image.spdx.json"
)

// versions are those of Semantic Versioning without build metadata, which an image's tag cannot have.
var versions = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z][0-9A-Za-z.-]*)?$`)

// platform is a system that kubectl-packetwalk is published for. Templates use its fields and methods.
type platform struct {
	OS, Arch string // as GOOS and GOARCH, and as in krew's manifest
}

var platforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

// Program returns the name of the plugin in its archive.
func (p platform) Program() string { return "kubectl-packetwalk" + p.extension() }

// Archive returns the name of the plugin's archive.
func (p platform) Archive() string { return "kubectl-packetwalk_" + p.OS + "_" + p.Arch + ".tar.gz" }

func (p platform) extension() string {
	if p.OS == "windows" {
		return ".exe"
	}
	return ""
}

type releaser struct {
	version, ldflags, base string
	lab                    string // a folder whose files are published, too: the archives and the image of labs; "" for none
	out                    string // the folder that is written
	created                time.Time
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var r releaser
	flag.StringVar(&r.version, "version", "", "the version, such as v1.2.0")
	flag.StringVar(&r.ldflags, "ldflags", "", "flags of Go's linker for the programs")
	flag.StringVar(&r.base, "base", "", "the URL of the folder that the archives will be published in")
	flag.StringVar(&r.lab, "lab", "", "a folder whose files are published, too: the archives and the image of labs")
	flag.StringVar(&r.out, "o", "bin/release", "the folder to write")
	check := flag.Bool("check", false, "only check version and checkout")
	flag.Parse()
	err := r.check(ctx)
	if err == nil && !*check {
		err = r.run(ctx, flag.Args())
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// check refuses what is no version, changes that are not committed, and what is too old to publish, which a pre-release may be. It reads the
// time of the commit.
func (r *releaser) check(ctx context.Context) error {
	if !versions.MatchString(r.version) {
		return fmt.Errorf("invalid version %q; write VERSION=v1.2.0", r.version)
	}
	if err := r.checkout(ctx); err != nil {
		return err
	}
	err := checkFresh(".", time.Now())
	if err != nil && strings.Contains(r.version, "-") {
		fmt.Fprintln(os.Stderr, "release: a pre-release although", err)
		return nil
	}
	return err
}

// run makes the image by a command, and everything else from that. The working directory is the checkout.
func (r *releaser) run(ctx context.Context, makeImage []string) error {
	if len(makeImage) == 0 {
		return errors.New("no command that makes the image")
	}
	if err := run(ctx, nil, makeImage...); err != nil {
		return err
	}
	archive, err := os.Open(imageArchive)
	if err != nil {
		return err
	}
	defer archive.Close()
	digest, err := imageDigest(archive)
	if err != nil {
		return fmt.Errorf("%s: %w", imageArchive, err)
	}
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	for _, write := range []func(context.Context, string) error{r.copyImage, r.writePrograms, r.writeChart, r.writeManifests,
		r.writeKrew, r.writeNotes, r.copyLab, r.writeSBOMs} {
		if err := write(ctx, digest); err != nil {
			return err
		}
	}
	if err := r.writeSums(); err != nil {
		return err
	}
	fmt.Printf("%s@%s\n%s\n", imageref.Image(r.version), digest, r.out)
	return nil
}

// checkout reads the commit's time (or SOURCE_DATE_EPOCH), and refuses changes that are not committed.
func (r *releaser) checkout(ctx context.Context) error {
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output()
	if err != nil {
		return fmt.Errorf("git status: %w", err)
	}
	if len(changes) > 0 {
		return fmt.Errorf("uncommitted changes; commit or stash them:\n%s", changes)
	}
	text, err := exec.CommandContext(ctx, "git", "log", "-1", "--format=%ct").Output()
	if err != nil {
		return fmt.Errorf("git log: %w", err)
	}
	stamp := cmp.Or(os.Getenv("SOURCE_DATE_EPOCH"), strings.TrimSpace(string(text)))
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return fmt.Errorf("invalid time of the commit or SOURCE_DATE_EPOCH: %w", err)
	}
	r.created = time.Unix(seconds, 0).UTC()
	return nil
}

func (r *releaser) copyImage(context.Context, string) error {
	for _, file := range []string{imageArchive, imageSBOM} {
		to := filepath.Join(r.out, filepath.Base(file))
		if err := os.Link(file, to); err != nil {
			return err
		}
	}
	return nil
}

// copyLab links the archives and the image of labs into the release.
func (r *releaser) copyLab(context.Context, string) error {
	if r.lab == "" {
		return nil
	}
	entries, err := os.ReadDir(r.lab)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == "SHA256SUMS" { // of the archives alone; the release has its own
			continue
		}
		if err := os.Link(filepath.Join(r.lab, e.Name()), filepath.Join(r.out, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// writePrograms builds the programs again, with the image's digest, and packs them: the plugin for all platforms, and the programs of nodes
// for Linux.
func (r *releaser) writePrograms(ctx context.Context, digest string) error {
	for _, p := range platforms {
		if err := r.writePlatform(ctx, p, digest); err != nil {
			return fmt.Errorf("%s/%s: %w", p.OS, p.Arch, err)
		}
	}
	return nil
}

func (r *releaser) writePlatform(ctx context.Context, p platform, digest string) error {
	const portmap = "github.com/containernetworking/plugins/plugins/meta/portmap"
	dir, err := os.MkdirTemp("", "packetwalk-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	packages := []string{"./cmd/packetwalk"}
	if p.OS == "linux" {
		packages = append(packages, "./cmd/packetwalk-node", "./cmd/packetwalk-cni", portmap)
	}
	env := append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Arch, "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOWORK=off",
		"GOFLAGS=-trimpath", "GOFIPS140=off") // as tools/image builds
	ldflags := r.ldflags + " -X packetwalk.dev/internal/base/imageref.Digest=" + digest
	fmt.Fprintf(os.Stderr, "building the programs for %s/%s, which name the image by its digest\n", p.OS, p.Arch)
	if err := run(ctx, env, append([]string{"go", "build", "-buildvcs=false", "-ldflags", ldflags, "-o", dir + "/"}, packages...)...); err != nil {
		return err
	}
	license := archiveFile{"LICENSE", "LICENSE", 0o644}
	plugin := []archiveFile{license, {p.Program(), filepath.Join(dir, "packetwalk"+p.extension()), 0o755}}
	if err := writeArchive(filepath.Join(r.out, p.Archive()), plugin, r.created); err != nil || p.OS != "linux" {
		return err
	}
	all := []archiveFile{license}
	for _, name := range []string{"packetwalk", "packetwalk-cni", "packetwalk-node", "portmap"} {
		all = append(all, archiveFile{name, filepath.Join(dir, name), 0o755})
	}
	return writeArchive(filepath.Join(r.out, "packetwalk_linux_"+p.Arch+".tar.gz"), all, r.created)
}

// writeChart runs the program that packs the chart, which is in another module: Helm needs other versions of Kubernetes' libraries.
func (r *releaser) writeChart(ctx context.Context, digest string) error {
	out, err := filepath.Abs(r.out)
	if err != nil {
		return err
	}
	return run(ctx, nil, "go", "run", "-C", "controlplane/chart", "./pack", "-version", r.version, "-digest", digest,
		"-time", strconv.FormatInt(r.created.Unix(), 10), "-o", out)
}

// writeManifests writes deploy/manifests with the image's digest.
func (r *releaser) writeManifests(_ context.Context, digest string) error {
	files, err := filepath.Glob("deploy/manifests/*.yaml")
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		stamped, err := stamp(text, imageref.Image(r.version)+"@"+digest)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(r.out, filepath.Base(file)), stamped, 0o644); err != nil {
			return err
		}
	}
	return nil
}

var imageLine = regexp.MustCompile(`(?m)^( +image: )` + regexp.QuoteMeta(imageref.Image("VERSION")) + `$`)

// stamp replaces the image of a manifest's containers.
func stamp(manifest []byte, image string) ([]byte, error) {
	stamped := imageLine.ReplaceAll(manifest, []byte("${1}"+image))
	if bytes.Equal(stamped, manifest) {
		return nil, fmt.Errorf("no container has the image %s", imageref.Image("VERSION"))
	}
	return stamped, nil
}

// writeKrew fills in krew's manifest.
func (r *releaser) writeKrew(context.Context, string) error {
	sums, err := sums(r.out)
	if err != nil {
		return err
	}
	text, err := krewManifest("deploy/krew/packetwalk.yaml", r.version, r.base, sums)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, "krew-packetwalk.yaml"), text, 0o644)
}

// krewManifest fills in the manifest in a file. sums are the SHA-256 of the archives by their names, in hexadecimal.
func krewManifest(file, version, base string, sums map[string]string) ([]byte, error) {
	sum := func(archive string) (string, error) {
		if s := sums[archive]; s != "" {
			return s, nil
		}
		return "", fmt.Errorf("no archive %s", archive)
	}
	t, err := template.New(filepath.Base(file)).Option("missingkey=error").Funcs(template.FuncMap{"sha256": sum}).ParseFiles(file)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = t.Execute(&text, map[string]any{"Version": version, "Base": base, "Platforms": platforms})
	return text.Bytes(), err
}

// archives are the names of the plugin's, the programs' and the labs' archives, and their platforms.
var archives = regexp.MustCompile(`^.+_([a-z]+)_([a-z0-9]+)\.tar\.(?:gz|zst)$`)

// writeSBOMs writes beside each archive, and each image of labs, what it is made of. An image of labs is made of its archive.
func (r *releaser) writeSBOMs(context.Context, string) error {
	sums, err := sums(r.out)
	if err != nil {
		return err
	}
	for name, sum := range sums {
		m := archives.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		components, err := sbom.ReadArchive(filepath.Join(r.out, name), r.version)
		if err != nil {
			return err
		}
		contents := sbom.Contents{Platform: m[1] + "/" + m[2], Components: components}
		if err := r.writeSBOM(sbom.Subject{Name: name, Purpose: "ARCHIVE", SHA256: sum}, contents); err != nil {
			return err
		}
		rest, ofLab := strings.CutPrefix(name, "packetwalk-lab_")
		image := "packetwalk-lab-image_" + strings.TrimSuffix(rest, ".zst")
		if sum := sums[image]; ofLab && sum != "" {
			if err := r.writeSBOM(sbom.Subject{Name: image, Purpose: "CONTAINER", SHA256: sum}, contents); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *releaser) writeSBOM(s sbom.Subject, contents sbom.Contents) error {
	s.Version, s.Created = r.version, r.created
	text, err := sbom.Write(s, contents)
	if err != nil {
		return err
	}
	name, _, _ := strings.Cut(s.Name, ".tar")
	return os.WriteFile(filepath.Join(r.out, name+".spdx.json"), text, 0o644)
}

// writeSums writes the checksums of all files, as sha256sum does.
func (r *releaser) writeSums() error {
	sums, err := sums(r.out)
	if err != nil {
		return err
	}
	var lines []string
	for name, sum := range sums {
		lines = append(lines, sum+"  "+name+"\n")
	}
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(a[64:], b[64:]) })
	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(strings.Join(lines, "")), 0o644)
}

// sums returns the SHA-256 of each file in a folder, by its name.
func sums(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		all[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(text))
	}
	return all, nil
}

// run runs a command, with the environment env or, if that is nil, this process's.
func run(ctx context.Context, env []string, args ...string) error {
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Env, c.Stdout, c.Stderr = env, os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return nil
}
