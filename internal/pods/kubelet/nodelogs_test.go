package kubelet

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNodeLogs: what is in the node's /var/log is served, and nothing else, wherever links lead and whatever is there.
func TestNodeLogs(t *testing.T) {
	dir := t.TempDir()
	k := &Kubelet{cfg: Config{Disk: filepath.Join(dir, "node")}}
	root := k.hostRoot()
	if err := makeNodeFiles(root, "node-0"); err != nil {
		t.Fatal(err)
	}
	log := func(name string) string { return filepath.Join(root, "var/log", name) }
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "secret"), []byte("the machine's"), 0o644),
		os.MkdirAll(log("agent"), 0o755), os.WriteFile(log("agent/a.log"), []byte("a line\n"), 0o600),
		os.WriteFile(log("<b>"), nil, 0o644),
		os.Symlink("/etc/hostname", log("inside")), os.Symlink(filepath.Join(dir, "secret"), log("outside")),
		os.Symlink("../../../secret", log("above")), os.Symlink("loop", log("loop")),
		unix.Mkfifo(log("pipe"), 0o644), unix.Mknod(log("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
	); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		method, path string
		code         int
		body         string
	}{
		{"GET", "/logs/", 200, `<a href="agent/">agent/</a>`},
		{"GET", "/logs/", 200, `&lt;b&gt;</a>`},
		{"GET", "/logs/agent/a.log", 200, "a line\n"},
		{"GET", "/logs/inside", 200, "node-0\n"},
		{"GET", "/logs/nosuch", 404, ""},
		{"GET", "/logs/outside", 404, ""},
		{"GET", "/logs/above", 404, ""},
		{"GET", "/logs/../../etc/hostname", 404, ""},
		{"GET", "/logs/loop", 500, ""},
		{"GET", "/logs/pipe", 403, ""},
		{"GET", "/logs/null", 403, ""},
		{"POST", "/logs/agent/a.log", 405, ""},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(tt.method, "/", nil)
		r.URL.Path = tt.path
		k.nodeLogs().ServeHTTP(w, r)
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.body) || strings.Contains(w.Body.String(), "machine") {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, w.Code, w.Body)
		}
	}
	for i := range listMost + 10 {
		if err := os.Link(log("agent/a.log"), log(fmt.Sprintf("agent/%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	w := httptest.NewRecorder()
	k.nodeLogs().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/logs/agent/", nil))
	if n := strings.Count(w.Body.String(), "<a "); w.Code != 200 || n != listMost {
		t.Errorf("%d: %d names", w.Code, n)
	}
}
