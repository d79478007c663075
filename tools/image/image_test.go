package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
)

const digest = "0e1b7a2d3c4f5a6b7c8d9e0f0e1b7a2d3c4f5a6b7c8d9e0f0e1b7a2d3c4f5a6b"

// TestLock: the repository's own lock is read, and written the same; it has each package for both architectures.
func TestLock(t *testing.T) {
	all, err := readLock("packages.lock")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "packages.lock")
	was, err := os.ReadFile("packages.lock")
	if err != nil {
		t.Fatal(err)
	}
	_, day, _ := strings.Cut(string(was), "# locked on ")
	day, _, _ = strings.Cut(day, "\n")
	if err := writeLock(file, all, day); err != nil {
		t.Fatal(err)
	}
	is, _ := os.ReadFile(file)
	if diff := cmp.Diff(string(was), string(is)); diff != "" {
		t.Error(diff)
	}
	archs := map[string]int{}
	for _, l := range all {
		archs[l.image]++
	}
	if archs["amd64"] == 0 || archs["amd64"] != archs["arm64"] || len(archs) != 2 {
		t.Errorf("packages for %v", archs)
	}
}

// TestBadLock: each fault is named with its line and what to do.
func TestBadLock(t *testing.T) {
	for line, want := range map[string]string{
		"amd64 nftables 1.0 amd64 100 " + digest:                           "6 fields, and not 7",
		"amd64 nftables 1.0 amd64 -1 " + digest + " debian/n.deb":          `"-1" is no size`,
		"amd64 nftables 1.0 amd64 99999999999 " + digest + " a":            "is no size of a package",
		"amd64 nftables 1.0 amd64 100 " + digest[2:] + " debian/n.deb":     "is no SHA-256 digest",
		"amd64 nftables 1.0 amd64 100 " + digest + " ../debian/n.deb":      "is no path below a mirror",
		"amd64 nftables 1.0 amd64 100 " + digest + " //evil.example/n.deb": "is no path below a mirror",
	} {
		file := filepath.Join(t.TempDir(), "packages.lock")
		if err := os.WriteFile(file, []byte("# a comment\n"+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readLock(file)
		if err == nil || !strings.Contains(err.Error(), file+":2: ") || !strings.Contains(err.Error(), want) ||
			!strings.HasSuffix(err.Error(), "make image LOCK=update writes it anew") {
			t.Errorf("%q: %v, want %q", line, err, want)
		}
	}
}

// TestEnvironment: what this machine's Go is told, by its environment or by go env -w, is no matter of the image's.
func TestEnvironment(t *testing.T) {
	own := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(own, []byte("GOFLAGS=-tags=own\nGOFIPS140=latest\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{"GOENV": own, "GOFLAGS": "-tags=own", "GOFIPS140": "latest", "GOAMD64": "v3"} {
		t.Setenv(key, value)
	}
	for range 2 {
		c := exec.CommandContext(t.Context(), "go", "env", "GOFLAGS", "GOFIPS140", "GOAMD64", "GOARCH")
		c.Env = environment("amd64")
		got, err := c.Output()
		if want := "-trimpath\noff\nv1\namd64\n"; err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
		t.Setenv("GOFLAGS", "") // the file has it
	}
}

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

// TestParseURIs reads what apt-get prints, with an epoch and escapes. What is not the mirror's or has no SHA-256 digest is refused.
func TestParseURIs(t *testing.T) {
	const printed = "'http://deb.debian.org/debian/pool/libbpf1_1.1.2-0%2bdeb12u1_arm64.deb' libbpf1_1%3a1.1.2-0+deb12u1_arm64.deb 37 SHA256:" +
		digest + "\n'http://deb.debian.org/debian/pool/netbase_6.4_all.deb' netbase_6.4_all.deb 12800 SHA256:" + digest + "\n"
	got, err := parseURIs("arm64", "http://deb.debian.org", printed)
	if err != nil {
		t.Fatal(err)
	}
	want := []lockedPackage{
		{image: "arm64", name: "libbpf1", version: "1:1.1.2-0+deb12u1", arch: "arm64", size: 37, path: "debian/pool/libbpf1_1.1.2-0+deb12u1_arm64.deb",
			sha256: digest},
		{image: "arm64", name: "netbase", version: "6.4", arch: "all", size: 12800, path: "debian/pool/netbase_6.4_all.deb", sha256: digest},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(lockedPackage{})); diff != "" {
		t.Error(diff)
	}
	for _, line := range []string{
		"'http://other.example/debian/a_1_all.deb' a_1_all.deb 1 SHA256:" + digest, "'http://deb.debian.org/a.deb' a.deb 1 SHA256:" + digest,
		"'http://deb.debian.org/debian/a_1_all.deb' a_1_all.deb 1 MD5Sum:" + digest, "'http://deb.debian.org/debian/a_1_all.deb' a_1_all.deb 1",
		"'http://deb.debian.org/debian/a_1_all.deb' a_1_all.deb 1 SHA256:00",
	} {
		if _, err := parseURIs("arm64", "http://deb.debian.org", line+"\n"); err == nil {
			t.Errorf("%q is read", line)
		}
	}
}

// TestPush: an index with its images goes to a registry by the version's tag, or the one that is given; never by a digest.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	index, err := random.Index(1024, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	want, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for push, at := range map[string]string{host + "/packetwalk": "v1-2-dirty", host + "/packetwalk:mine": "mine"} {
		m := maker{options: options{version: "v1+2-dirty", push: push}}
		if err := m.pushTo(t.Context(), index, want); err != nil {
			t.Fatal(err)
		}
		answer, err := http.Get(server.URL + "/v2/packetwalk/manifests/" + at)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if got := answer.Header.Get("Docker-Content-Digest"); got != want.String() {
			t.Errorf("%s: %s, want %s", at, got, want)
		}
	}
	for _, push := range []string{host + "/packetwalk@" + want.String(), "Packet Walk", host + "/packetwalk:"} {
		if err := (&maker{options: options{version: "v1", push: push}}).pushTo(t.Context(), index, want); err == nil {
			t.Errorf("pushed to %q", push)
		}
	}
}
