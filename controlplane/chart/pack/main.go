// Command pack writes the Helm chart deploy/chart of a release: with its version, and with the digest of its image as a value.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
)

func main() {
	dir := flag.String("chart", "../../deploy/chart", "the chart's sources")
	version := flag.String("version", "", "the release, such as v1.2.0")
	digest := flag.String("digest", "", "the image's digest, sha256:…")
	seconds := flag.Int64("time", 0, "the time of all files, in seconds since 1970")
	out := flag.String("o", ".", "the folder to write to")
	flag.Parse()
	file, err := pack(*dir, *version, *digest, time.Unix(*seconds, 0), *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pack the chart:", err)
		os.Exit(1)
	}
	fmt.Println(file)
}

// pack writes the archive NAME-VERSION.tgz and returns its file. The same arguments give the same bytes.
func pack(dir, version, digest string, created time.Time, out string) (string, error) {
	c, err := loader.Load(dir)
	if err != nil {
		return "", err
	}
	c.Metadata.Version, c.Metadata.AppVersion = strings.TrimPrefix(version, "v"), version
	c.ModTime, c.SchemaModTime = created, created
	for _, f := range c.Raw {
		f.ModTime = created
		if f.Name != chartutil.ValuesfileName {
			continue
		}
		const empty = "\n  digest: \"\"\n"
		if n := bytes.Count(f.Data, []byte(empty)); n != 1 {
			return "", fmt.Errorf("%s: found image.digest %d times, want it once and empty", f.Name, n)
		}
		f.Data = bytes.Replace(f.Data, []byte(empty), fmt.Appendf(nil, "\n  digest: %s\n", digest), 1)
	}
	for _, f := range append(c.Templates, c.Files...) {
		f.ModTime = created
	}
	return chartutil.Save(c, out)
}
