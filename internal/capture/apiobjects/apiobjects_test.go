package apiobjects

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"packetwalk.dev/internal/capture"
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

// server answers for pods in pages of two, and for nothing else but nodes, which are forbidden. Its first token has expired.
type server struct {
	mu    sync.Mutex
	asked []string // limits and tokens of the requests for pods
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	pod := func(n int) string {
		return fmt.Sprintf(`{"metadata":{"namespace":"shop","name":"web-%d","managedFields":[{"manager":"secret"}]},`+
			`"spec":{"nodeName":"n1","hostNetwork":true,"containers":[{"env":[{"name":"PASSWORD","value":"secret"}],`+
			`"args":["--ip-masq-configmaps=mine,other"]}]},"status":{"podIPs":[{"ip":"10.0.0.%d"}]}}`, n, n)
	}
	page := func(next string, pods ...string) {
		fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"continue":%q},"items":[%s]}`, next, strings.Join(pods, ","))
	}
	fails := func(code int, reason, next string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{"continue":%q},"status":"Failure","reason":%q,"code":%d,"message":%q}`, next, reason, code,
			"jane cannot do that")
	}
	switch r.URL.Path {
	case "/api/v1/nodes":
		fails(http.StatusForbidden, "Forbidden", "")
		return
	case "/api/v1/namespaces/kube-system/configmaps/mine":
		fmt.Fprint(w, `{"metadata":{"name":"mine"},"data":{"ip-masq-agent":"x"}}`)
		return
	case "/api/v1/namespaces/kube-system/configmaps/other":
		fails(http.StatusForbidden, "Forbidden", "")
		return
	case "/api/v1/pods":
	default:
		fails(http.StatusNotFound, "NotFound", "")
		return
	}
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Query().Get("limit")+" "+r.URL.Query().Get("continue"))
	s.mu.Unlock()
	switch r.URL.Query().Get("continue") {
	case "":
		page("old", pod(1), pod(2))
	case "old":
		fails(http.StatusGone, "Expired", "new")
	case "new":
		page("last", pod(3), pod(4))
	case "last":
		page("", pod(5))
	}
}

// TestPages: a list is read page by page, on by a newer token where one has expired, and of its objects what walks use is kept.
func TestPages(t *testing.T) {
	s := &server{}
	api := httptest.NewServer(s)
	defer api.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: c}}]\nusers: [{name: c, user: {}}]\ncurrent-context: c\n", api.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	lists, err := Fetch(t.Context(), kubeconfig)
	for text, want := range map[string]bool{
		"/api/v1/nodes: jane cannot do that": true, "configmaps/other: jane cannot do that": true, "/api/v1/pods": false, "ip-masq-agent": false,
	} {
		if err == nil || strings.Contains(err.Error(), text) != want {
			t.Errorf("error %v; %q is %v", err, text, want)
		}
	}
	objects, err := capture.ReadObjects(lists)
	if err != nil {
		t.Fatal(err)
	}
	if len(objects.ConfigMaps) != 1 || objects.ConfigMaps[0].Name != "mine" {
		t.Errorf("ConfigMaps %+v", objects.ConfigMaps)
	}
	for i, p := range objects.Pods {
		if want := fmt.Sprintf("web-%d", i+1); p.Name != want {
			t.Errorf("pod %d is %s", i, p.Name)
		}
	}
	if len(objects.Pods) != 5 || strings.Contains(string(lists["pods.json"]), "secret") {
		t.Errorf("pods %s", lists["pods.json"])
	}
	if want := "500 ,500 old,500 new,500 last"; strings.Join(s.asked, ",") != want {
		t.Errorf("asked %v", s.asked)
	}
	if _, there := lists["nodes.json"]; there || !json.Valid(lists["services.json"]) {
		t.Errorf("lists %q", lists)
	}
}
