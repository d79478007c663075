package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFetch: a package comes from the mirror once, and another content than the locked one never; a version that the mirror no longer has
// is said with what to do.
func TestFetch(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	const content = "the package"
	asked, answer := 0, content
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch r.URL.EscapedPath() {
		case "/debian/pool/n_1.0+b1~x_amd64.deb":
			_, _ = w.Write([]byte(answer))
		case "/broken":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer mirror.Close()
	good := lockedPackage{image: "amd64", name: "n", version: "1.0+b1~x", arch: "amd64", size: int64(len(content)), sha256: sum([]byte(content)),
		path: "debian/pool/n_1.0+b1~x_amd64.deb"}
	for range 2 {
		file, err := fetch(t.Context(), mirror.URL, good)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != content {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if asked != 1 {
		t.Errorf("the mirror was asked %d times", asked)
	}
	cached := filepath.Join(os.Getenv("XDG_CACHE_HOME"), "packetwalk", "debian", good.sha256+".deb")
	if err := os.WriteFile(cached, []byte("the passage"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := fetch(t.Context(), mirror.URL, good)
	if got, _ := os.ReadFile(cached); err != nil || string(got) != content || asked != 2 {
		t.Errorf("of a damaged cache: %q, %v, asked %d times", got, err, asked)
	}
	if err := os.Remove(cached); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ answer, path, want string }{
		"another content": {"the passage", good.path, "is not the package that was locked"},
		"longer":          {content + content, good.path, "most that is read"},
		"shorter":         {content[:3], good.path, "is not the package that was locked"},
		"not there":       {content, "gone", "make image LOCK=update"},
		"broken":          {content, "broken", "500 Internal Server Error"},
	} {
		answer = test.answer
		l := good
		l.path = test.path
		if _, err := fetch(t.Context(), mirror.URL, l); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if _, err := os.Lstat(cached); err == nil {
			t.Errorf("%s: it is in the cache", name)
		}
	}
}
