package masq

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/service"
)

// TestState shows what others see: state, health and log, and that the log waits for its next line.
func TestState(t *testing.T) {
	o := options.Defaults()
	o.NodeName, o.MasqForm = "node0", ipmasq.FormV2
	s := newState(o, discard)
	s.first = 1
	mux := http.NewServeMux()
	s.serve(mux)
	server := httptest.NewServer(mux)
	defer server.Close()
	get := func(path string) (int, string) {
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, body := get(HealthPath); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, "no configuration has been read yet") {
		t.Errorf("health at first: %d %s", code, body)
	}
	config, _ := ipmasq.Parse(ipmasq.Options{Form: ipmasq.FormV2},
		[]ipmasq.File{{ConfigMap: "kube-system/" + ipmasq.UserConfigMap, Key: "ip-masq-agent", Text: "nonMasqueradeCIDRs: [10.1.0.0/16]"}})
	set, err := ipmasq.Rules("current", service.IPv4, config)
	if err != nil {
		t.Fatal(err)
	}
	s.accept(config, nil)
	s.hold(service.IPv4, set)
	s.note(nil)
	if code, body := get(HealthPath); code != http.StatusOK {
		t.Errorf("health: %d %s", code, body)
	}
	if _, body := get(StatePath); !strings.Contains(body, `"entry": "nonMasqueradeCIDRs[0]"`) ||
		!strings.Contains(body, `-A IP-MASQ-AGENT -d 10.1.0.0/16`) {
		t.Errorf("state: %s", body)
	}
	s.logf("one")
	s.logf("two")
	if _, body := get(LogPath + "?after=1"); !strings.HasPrefix(body, "2 ") || !strings.HasSuffix(body, " two\n") ||
		strings.Count(body, "\n") != 1 {
		t.Errorf("log after 1: %q", body)
	}
	if _, body := get(LogPath + "?after=999"); strings.Count(body, "\n") != 2 { // a number that cannot be
		t.Errorf("log after 999: %q", body)
	}
	if code, _ := get(LogPath + "?after=x"); code != http.StatusBadRequest {
		t.Errorf("log after x: %d", code)
	}
	go func() {
		time.Sleep(50 * time.Millisecond)
		s.logf("three")
	}()
	if _, body := get(LogPath + "?after=2"); !strings.HasPrefix(body, "3 ") {
		t.Errorf("log after 2: %q", body)
	}
}
