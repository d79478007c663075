package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
)

const digest = "0e1b7a2d3c4f5a6b7c8d9e0f0e1b7a2d3c4f5a6b7c8d9e0f0e1b7a2d3c4f5a6b"

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
