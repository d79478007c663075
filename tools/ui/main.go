// Command ui bundles the page of 'packetwalk ui'. It reads the sources in ui/src, and Preact in the version of ui/package-lock.json, and
// writes internal/webui/bundle. Run it in the root directory of the repository:
//
//	go -C tools/ui run . [--check]
//
// With --check it writes nothing, and fails if the bundle is not what the sources give.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/evanw/esbuild/pkg/api"
)

const library = "preact"

func main() {
	root := flag.String("root", "../..", "the root directory of the repository")
	check := flag.Bool("check", false, "compare the bundle with the sources, and write nothing")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "ui:", err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	modules, err := os.MkdirTemp("", "packetwalk-ui-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(modules)
	licence, err := fetchPackage(filepath.Join(root, "ui/package-lock.json"), library, modules)
	if err != nil {
		return err
	}
	files, err := build(filepath.Join(root, "ui/src"), modules)
	if err != nil {
		return err
	}
	files["preact.LICENSE"] = licence
	target := filepath.Join(root, "internal/webui/bundle")
	for name, data := range files {
		path := filepath.Join(target, name)
		old, err := os.ReadFile(path)
		switch {
		case err == nil && bytes.Equal(old, data):
		case check:
			return fmt.Errorf("%s is not what ui/src gives; run 'make ui'", path)
		default:
			if err := os.WriteFile(path, data, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// build returns the bundle's files by name.
func build(source, modules string) (map[string][]byte, error) {
	source, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for entry, name := range map[string]string{"main.tsx": "page.js", "page.css": "page.css"} {
		result := api.Build(api.BuildOptions{
			EntryPoints: []string{filepath.Join(source, entry)}, AbsWorkingDir: source, NodePaths: []string{modules}, Bundle: true,
			MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true, Format: api.FormatIIFE, Target: api.ES2022,
			JSX: api.JSXAutomatic, JSXImportSource: library, LegalComments: api.LegalCommentsNone, Charset: api.CharsetASCII, LogLevel: api.LogLevelSilent,
		})
		if len(result.Errors) > 0 {
			return nil, errors.New(strings.Join(api.FormatMessages(result.Errors, api.FormatMessagesOptions{}), ""))
		}
		files[name] = result.OutputFiles[0].Contents
	}
	for _, name := range []string{"index.html", "icon.svg"} {
		if files[name], err = os.ReadFile(filepath.Join(source, name)); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// lock is an npm lock file.
type lock struct {
	Packages map[string]struct {
		Version   string `json:"version"`
		Integrity string `json:"integrity"`
	} `json:"packages"`
}

// maxPackage limits the size of a package, unpacked and packed.
const maxPackage = 16 << 20

// fetchPackage unpacks a package of npm below a directory as npm does, and returns its licence. The lock file has its version and digest.
func fetchPackage(lockFile, name, modules string) (licence []byte, err error) {
	data, err := os.ReadFile(lockFile)
	if err != nil {
		return nil, err
	}
	var l lock
	if err := json.Unmarshal(data, &l); err != nil {
		return nil, fmt.Errorf("read %s: %w", lockFile, err)
	}
	entry, ok := l.Packages["node_modules/"+name]
	if !ok {
		return nil, fmt.Errorf("%s does not have %s", lockFile, name)
	}
	url := fmt.Sprintf("https://registry.npmjs.org/%[1]s/-/%[1]s-%[2]s.tgz", name, entry.Version)
	packed, err := fetch(url)
	if err != nil {
		return nil, err
	}
	sum := sha512.Sum512(packed)
	if got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); got != entry.Integrity {
		return nil, fmt.Errorf("%s has digest %s; the lock file says %s", url, got, entry.Integrity)
	}
	return unpack(packed, filepath.Join(modules, name))
}

func fetch(url string) ([]byte, error) {
	client := &http.Client{Timeout: time.Minute}
	response, err := client.Get(url)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", url, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxPackage))
}

func unpack(packed []byte, target string) (licence []byte, err error) {
	compressed, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	files := tar.NewReader(io.LimitReader(compressed, maxPackage))
	for {
		head, err := files.Next()
		if errors.Is(err, io.EOF) {
			return licence, nil
		}
		if err != nil {
			return nil, err
		}
		name, ok := strings.CutPrefix(head.Name, "package/")
		if !ok || head.Typeflag != tar.TypeReg || !filepath.IsLocal(name) {
			continue
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return nil, err
		}
		if name == "LICENSE" {
			licence = content
		}
		path := filepath.Join(target, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return nil, err
		}
	}
}
