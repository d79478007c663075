package scripts

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// labFiles are the files of a checkout of which lab-archive makes an archive; those of base are elsewhere.
var labFiles = []string{"LICENSE", "README.md", "CHANGELOG.md", "docs/README.md", "docs/dev/design.md", "examples/shop/cluster.yaml", "bin/packetwalk", "bin/packetwalk-addon", "bin/packetwalk-app", "bin/packetwalk-cni",
	"bin/packetwalk-controlplane", "bin/packetwalk-dns", "bin/packetwalk-node", "bin/packetwalk-simulated", "bin/portmap",
	"bin/realnode/kubelet", "bin/calico/calico-felix-3.31", "cache/trixie-0123/whole.tar", "cache/trixie-0123/small.list",
	"cache/trixie-0123/locked"}

// TestLabArchive packs two checkouts that differ in times, modes and links.
func TestLabArchive(t *testing.T) {
	var archives [2][]byte
	for i := range archives {
		root := t.TempDir()
		for _, name := range labFiles {
			file := filepath.Join(root, name)
			place := file
			if i == 1 && name == "bin/packetwalk-controlplane" { // a link to a cache, as tools/controlplane makes
				place = filepath.Join(root, "cache", "program")
			}
			mustDo(t, os.MkdirAll(filepath.Dir(file), 0o755), os.MkdirAll(filepath.Dir(place), 0o755),
				os.WriteFile(place, []byte(name), 0o755-os.FileMode(i)*0o055), os.Chtimes(place, time.Time{}, time.Unix(int64(i)*1000, 0)))
			if place != file {
				mustDo(t, os.Symlink(place, file))
			}
		}
		script, err := os.ReadFile("lab-archive")
		mustDo(t, err, os.Mkdir(filepath.Join(root, "scripts"), 0o755),
			os.WriteFile(filepath.Join(root, "scripts", "lab-archive"), script, 0o755),
			os.Symlink(filepath.Join(root, "cache", "trixie-0123"), filepath.Join(root, "bin", "base")))
		cmd := exec.Command(filepath.Join(root, "scripts", "lab-archive"), "v1.2.0", "amd64", "bin", filepath.Join(root, "out"))
		cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000", "LEVEL=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("lab-archive: %v: %s", err, out)
		}
		archives[i], err = os.ReadFile(filepath.Join(root, "out", "packetwalk-lab_linux_amd64.tar.zst"))
		mustDo(t, err)
		check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
		check.Dir = filepath.Join(root, "out")
		if out, err := check.CombinedOutput(); err != nil || string(out) != "packetwalk-lab_linux_amd64.tar.zst: OK\n" {
			t.Errorf("SHA256SUMS: %v: %s", err, out)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the second archive differs")
	}
	list := exec.Command("tar", "--zstd", "-tf", "-")
	list.Stdin = bytes.NewReader(archives[0])
	out, err := list.Output()
	mustDo(t, err)
	names := strings.Fields(string(out))
	for _, name := range labFiles {
		name = "packetwalk-v1.2.0-linux-amd64/" + strings.TrimPrefix(strings.TrimPrefix(name, "bin/"), "cache/")
		if !slices.Contains(names, name) {
			t.Errorf("no %s in the archive: %s", name, fmt.Sprint(names))
		}
	}
}

func mustDo(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}
