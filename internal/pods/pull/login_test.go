package pull

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"

	"packetwalk.dev/internal/base/sudouser"
	"packetwalk.dev/internal/testing/kerneltest"
)

// loggedIn returns a home whose owner has docker's file of logins.
func loggedIn(t *testing.T, logins string) (home string) {
	t.Helper()
	home = t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, ".docker"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".docker", "config.json"), []byte(logins), 0o600); err != nil {
		t.Fatal(err)
	}
	return home
}

func userOf(t *testing.T, host string) (string, error) {
	t.Helper()
	a, err := (&logins{}).of(t.Context(), host)
	c, err2 := authn.Authorization(t.Context(), a)
	if err2 != nil {
		t.Fatal(err2)
	}
	return c.Username + "/" + c.Password + c.IdentityToken, err
}

func encoded(user string) string { return base64.StdEncoding.EncodeToString([]byte(user)) }

// TestLogins: a registry gets its own login, and no other's.
func TestLogins(t *testing.T) {
	t.Setenv("SUDO_UID", "")
	t.Setenv("HOME", loggedIn(t, fmt.Sprintf(`{"auths": {"https://index.docker.io/v1/": {"auth": %q}, "ghcr.io": {"auth": %q},
		"https://quay.io": {"username": "q", "password": "p"}, "empty.example": {}}, "credHelpers": {"evil.example": "../../evil"}}`,
		encoded("hub:secret"), encoded("me:token"))))
	for host, want := range map[string]string{
		"index.docker.io": "hub/secret", "ghcr.io": "me/token", "quay.io": "q/p", "mcr.microsoft.com": "/", "ghcr.io.example": "/",
		"empty.example": "/", "ghcr.io:8443": "/",
	} {
		if got, err := userOf(t, host); got != want || err != nil {
			t.Errorf("%s gets %q, %v; want %q", host, got, err, want)
		}
	}
	if _, err := userOf(t, "evil.example"); err == nil || !strings.Contains(err.Error(), "is no credential helper") {
		t.Errorf("a helper with a path: %v", err)
	}
	t.Setenv("HOME", loggedIn(t, `{"auths": "secret"`))
	if _, err := userOf(t, "ghcr.io"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a file that is none: %v", err)
	}
	t.Setenv("HOME", t.TempDir())
	if got, err := userOf(t, "ghcr.io"); got != "/" || err != nil {
		t.Errorf("without a file: %q, %v", got, err)
	}
}

// TestLoginIsUsed: the registry that asks for a login gets it, and where another leads to gets none.
func TestLoginIsUsed(t *testing.T) {
	t.Setenv("SUDO_UID", "")
	h, s := newHub(t), newStore(t)
	ref, _ := h.push(t, "shop:v1", runtime.GOARCH)
	h.front = func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user == "me" && password == "token" {
			return false
		}
		w.Header().Set("WWW-Authenticate", "Basic realm=x")
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	t.Setenv("HOME", t.TempDir())
	if _, err := NewClient(h.allowed()).Load(t.Context(), s, ref); err == nil || !strings.Contains(err.Error(), "docker login") {
		t.Errorf("without a login: %v", err)
	}
	t.Setenv("HOME", loggedIn(t, fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, h.host, encoded("me:token"))))
	if _, err := NewClient(h.allowed()).Load(t.Context(), s, ref); err != nil {
		t.Error(err)
	}
	other := newHub(t)
	leaked := false
	other.front = func(w http.ResponseWriter, r *http.Request) bool {
		leaked = leaked || r.Header.Get("Authorization") != ""
		w.WriteHeader(http.StatusNotFound)
		return true
	}
	front := h.front
	h.front = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		}
		return front(w, r)
	}
	_, err := NewClient(append(h.allowed(), other.allowed()...)).Load(t.Context(), newStore(t), ref)
	if err == nil || leaked || other.asked.Load() == 0 {
		t.Errorf("%v; the other registry got the login: %v", err, leaked)
	}
}

// TestInvoker: behind sudo logins are those of the user who typed it, read and asked for as that user.
func TestInvoker(t *testing.T) {
	kerneltest.NeedRoot(t)
	const nobody = "65534"
	t.Setenv("SUDO_UID", nobody)
	t.Setenv("SUDO_GID", nobody)
	t.Setenv("HOME", loggedIn(t, fmt.Sprintf(`{"auths": {"ghcr.io": {"auth": %q}}}`, encoded("root:secret"))))
	if got, err := userOf(t, "ghcr.io"); got != "/" || err != nil {
		t.Errorf("user 65534 has %q, %v", got, err)
	}
	home := loggedIn(t, fmt.Sprintf(`{"auths": {"ghcr.io": {"auth": %q}}}`, encoded("root:secret")))
	bin := filepath.Join(home, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	helper := "#!/bin/sh\nread host\n[ \"$1\" = get ] && echo \"{\\\"Username\\\": \\\"$(id -u) $HOME\\\", \\\"Secret\\\": \\\"$host\\\"}\"\n"
	if err := os.WriteFile(filepath.Join(bin, "docker-credential-test"), []byte(helper), 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := home; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	as := userNobody(t, home)
	config := filepath.Join(home, ".docker", "config.json")
	if _, err := readAs(t.Context(), as, config); err == nil {
		t.Error("nobody reads root's file")
	}
	if err := os.Chown(config, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if text, err := readAs(t.Context(), as, config); err != nil || !strings.Contains(string(text), "ghcr.io") {
		t.Errorf("another user's file: %q, %v", text, err)
	}
	got, err := ask(t.Context(), as, "test", "ghcr.io")
	if err != nil || got.Username != nobody+" "+home || got.Password != "ghcr.io" {
		t.Errorf("the helper says %+v, %v", got, err)
	}
	if _, err := ask(t.Context(), as, "absent", "ghcr.io"); err == nil {
		t.Error("a helper that is not there")
	}
}

// userNobody returns the user nobody with a home directory.
func userNobody(t *testing.T, home string) sudouser.User {
	t.Helper()
	as, err := sudouser.Get()
	if err != nil {
		t.Fatal(err)
	}
	as.Home = home
	return as
}
