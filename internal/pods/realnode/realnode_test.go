package realnode

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/testing/goldentest"
	"packetwalk.dev/internal/testing/kerneltest"
)

func TestParseHierarchies(t *testing.T) {
	const (
		v2     = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
		hybrid = "35 33 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
		root   = "29 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n33 29 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
		cpu    = "36 33 0:32 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
		named  = "37 33 0:33 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
		twice  = "38 33 0:32 / /mnt/cpu rw - cgroup cgroup rw,cpuacct,cpu\n"
	)
	tests := []struct {
		name, mounts, own string
		want              []Hierarchy
	}{
		{"v1 beside v2", root + cpu + named + hybrid + twice, "2:cpu,cpuacct:/a\n1:name=systemd:/\n0::/user.slice\n", []Hierarchy{
			{"/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct"}, {"/sys/fs/cgroup/systemd", "name=systemd"}, {"/sys/fs/cgroup/unified", ""},
		}},
		{"v2 alone", root + v2, "0::/init.scope\n", []Hierarchy{{"/sys/fs/cgroup", ""}}},
		{"none", root, "", nil},
		{"of controllers that are not known", root + cpu, "0::/\n", nil},
		{"not whole", "36 33 - cgroup\n- cgroup2\n\n", "x\n1:cpu\n", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, parseHierarchies(test.mounts, test.own)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if got := (Hierarchy{Controllers: "name=systemd"}).Dir(); got != "systemd" {
		t.Errorf("the directory of a named hierarchy is %q", got)
	}
}

// TestRemoveCgroup: a group goes with all below it, in all hierarchies, its parent with it when it is empty; what is another's stays.
func TestRemoveCgroup(t *testing.T) {
	kerneltest.NeedRoot(t)
	all, err := Hierarchies()
	if err != nil || len(all) == 0 {
		t.Fatalf("hierarchies: %v, %v", all, err)
	}
	parent := fmt.Sprintf("packetwalk-test-%d", os.Getpid())
	there := func(name string) (n int) {
		for _, h := range all {
			if _, err := os.Stat(filepath.Join(h.Point, name)); err == nil {
				n++
			}
		}
		return n
	}
	for _, h := range all {
		for _, name := range []string{"a/b/c", "other"} {
			if err := os.MkdirAll(filepath.Join(h.Point, parent, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, step := range []struct {
		remove      string
		other, left int // in how many hierarchies the other group, and their parent, are then
	}{{"a", len(all), len(all)}, {"a", len(all), len(all)}, {"other", 0, 0}} {
		if err := RemoveCgroup(parent + "/" + step.remove); err != nil {
			t.Fatal(err)
		}
		if there(parent+"/a") != 0 || there(parent+"/other") != step.other || there(parent) != step.left {
			t.Errorf("after the removal of %s: a in %d hierarchies, other in %d, their parent in %d", step.remove, there(parent+"/a"),
				there(parent+"/other"), there(parent))
		}
	}
}

// TestNode: what a node's first process is given, and the files that the node's programs read.
func TestNode(t *testing.T) {
	goldentest.Run(t, "testdata/*.txtar", 1, func(t *testing.T, in []txtar.File) (out []txtar.File) {
		var c Config
		if err := json.Unmarshal(in[0].Data, &c); err != nil {
			t.Fatal(err)
		}
		files, err := c.files()
		if err != nil {
			t.Fatal(err)
		}
		spec, err := json.MarshalIndent(c.spec("/own", "/file"), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, txtar.File{Name: "spec", Data: append(spec, '\n')})
		for _, f := range files {
			text := f.Text
			if f.Link != "" {
				text = "-> " + f.Link + "\n"
			}
			if len(text) > 0 && text[len(text)-1] != '\n' {
				text += "\n"
			}
			out = append(out, txtar.File{Name: f.Path, Data: []byte(text)})
		}
		return out
	})
}

// TestWriteImage reads an image as containerd's importer does: manifest, configuration, layers by their digests.
func TestWriteImage(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "image.tar")
	layer0 := []ImageFile{{Path: "/bin/pause", Source: program}}
	images := []Image{
		{Reference: "registry.k8s.io/pause:3.10.1", Entrypoint: []string{"/bin/pause", "now"}, Layers: [][]ImageFile{layer0}},
		{Reference: "example.com/b:1", Layers: [][]ImageFile{layer0, {{Path: "/b", Link: "/bin/pause"}}}},
	}
	if err := WriteImages(path, images); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, archive)
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != 2 || len(manifest[0].Layers) != 1 ||
		len(manifest[1].Layers) != 2 || manifest[1].Layers[0] != manifest[0].Layers[0] {
		t.Fatalf("manifest: %v: %s", err, files["manifest.json"])
	}
	if diff := cmp.Diff([]string{"registry.k8s.io/pause:3.10.1"}, manifest[0].RepoTags); diff != "" {
		t.Error(diff)
	}
	var config struct {
		OS     string                        `json:"os"`
		Config struct{ Entrypoint []string } `json:"config"`
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(files[manifest[0].Config], &config); err != nil {
		t.Fatal(err)
	}
	layer := files[manifest[0].Layers[0]]
	if diff := cmp.Diff([]string{"sha256:" + digest(layer)}, config.RootFS.DiffIDs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/bin/pause", "now"}, config.Config.Entrypoint); diff != "" {
		t.Error(diff)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 || len(files) != 5 {
		t.Errorf("beside the archive are %v, in it %d files", left, len(files))
	}
	if got := untar(t, layer); len(got) != 1 || string(got["bin/pause"]) != "binary" {
		t.Errorf("the layer has %q", got)
	}
}

func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}
