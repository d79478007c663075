package apiobjects

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestUnread: an API server that does not answer is one reason, and not one for each list.
func TestUnread(t *testing.T) {
	at := func(path, why string) error {
		return fmt.Errorf("%s: %w", path, &url.Error{Op: "Get", URL: "https://127.0.0.1:1" + path, Err: errors.New(why)})
	}
	if err := unread([]error{nil, nil}); err != nil {
		t.Errorf("nothing is wrong: %v", err)
	}
	err := unread([]error{at("/api/v1/pods", "connection refused"), at("/api/v1/nodes", "connection refused")})
	if err == nil || err.Error() != "the API server does not answer: connection refused" {
		t.Errorf("nobody answers: %v", err)
	}
	for _, mixed := range [][]error{
		{nil, at("/api/v1/nodes", "timeout")}, {at("/api/v1/pods", "timeout"), nil},
		{at("/api/v1/pods", "refused"), at("/api/v1/nodes", "timeout")},
		{at("/api/v1/pods", "refused"), errors.New("/api/v1/nodes: forbidden")},
	} {
		err := unread(mixed)
		for _, part := range mixed {
			if part != nil && (err == nil || !strings.Contains(err.Error(), part.Error())) {
				t.Errorf("%v lacks %q", err, part)
			}
		}
	}
}

// TestCredentialProgram: behind sudo the program that a kubeconfig names for credentials does not run as root.
func TestCredentialProgram(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir := t.TempDir()
	ran, file := filepath.Join(dir, "ran"), filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users:
- name: u
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [%q], interactiveMode: Never}
`, ran)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for uid, refused := range map[string]bool{"65534": true, "": false} {
		t.Setenv("SUDO_UID", uid)
		_, err := Fetch(t.Context(), file)
		if err == nil || strings.Contains(err.Error(), "would run as root") != refused {
			t.Errorf("called by %q: %v", uid, err)
		}
		if _, err := os.Stat(ran); (err == nil) == refused {
			t.Errorf("called by %q: the program ran: %v", uid, err == nil)
		}
		_ = os.Remove(ran)
	}
}
