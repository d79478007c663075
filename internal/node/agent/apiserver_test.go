package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/report"
	"packetwalk.dev/internal/node/conflict"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/testing/eventually"
)

// TestAPIServerLate: an answer that comes when the time for it is over is the last word about the server.
func TestAPIServerLate(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			a := newAgent(options.Defaults(), slog.New(slog.DiscardHandler))
			answer := httptest.NewRecorder().Result()
			_, _ = a.api.transport(roundTrip(func(*http.Request) (*http.Response, error) { time.Sleep(answerTime); return answer, nil })).
				RoundTrip(httptest.NewRequest(http.MethodGet, "https://203.0.113.9", nil))
			synctest.Wait()
			if !a.api.since.IsZero() {
				t.Fatal("the server counts as unreachable although it answered")
			}
		})
	}
}

// TestAPIServerUnreachable: however many watches fail and however often, the log has one line with the server and the time, and /readyz,
// /faults and a metric say the same until it answers again.
func TestAPIServerUnreachable(t *testing.T) {
	const server = "https://203.0.113.9:443"
	unanswered := func(path, cause string) error {
		return fmt.Errorf("list: %w", &url.Error{Op: "Get", URL: server + path, Err: &net.OpError{Op: "dial", Err: errors.New(cause)}})
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("no rights"))
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		o := options.Defaults()
		o.ServiceProxy, o.NodeName = false, "node0"
		a := newAgent(o, slog.New(slog.NewTextHandler(&log, nil)))
		a.api.url = server
		began := time.Now()
		for i := range 5 {
			for _, what := range []string{"watch services", "watch endpointslices", "watch nodes"} {
				a.api.note(what, unanswered("/api/v1/"+what, fmt.Sprintf("refused, port %d", i)))
			}
			time.Sleep(report.FaultsLast / 4)
		}
		a.api.note("watch services", context.Canceled) // told to stop: no answer, and no fault
		want := fmt.Sprintf("API server %s unreachable since %s: dial: refused, port 0", server, began.Format(time.RFC3339))
		line := regexp.MustCompile(`^time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(Z|[+-]\d\d:\d\d) level=WARN msg="` + regexp.QuoteMeta(want) + `"\n$`)
		if !line.MatchString(log.String()) {
			t.Errorf("log is\n%s", log.String())
		}
		mux := http.NewServeMux()
		mux.Handle(report.FaultsPath, a.faults)
		mux.HandleFunc(conflict.ReadyPath, a.serveReady)
		get := func(path string) string {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			return w.Body.String()
		}
		var r conflict.Ready
		if err := json.Unmarshal([]byte(get(conflict.ReadyPath)), &r); err != nil || len(r.Problems) != 1 || r.Problems[0] != want {
			t.Errorf("readyz: %+v, %v", r, err)
		}
		if faults := get(report.FaultsPath); strings.Count(faults, "API server") != 1 || strings.Contains(faults, "watch") {
			t.Errorf("faults: %s", faults)
		}
		if text := string(a.registry.Text()); !strings.Contains(text, `packetwalk_api_server_reachable{node="node0"} 0`) {
			t.Errorf("metrics:\n%s", text)
		}
		log.Reset()
		a.api.note("watch services", nil) // client-go's watch has no error for a request that timed out
		if r := get(conflict.ReadyPath); !strings.Contains(r, "unreachable") {
			t.Errorf("readyz: %s", r)
		}
		answer := httptest.NewRecorder().Result()
		_, _ = a.api.transport(roundTrip(func(*http.Request) (*http.Response, error) { return answer, nil })).
			RoundTrip(httptest.NewRequest(http.MethodGet, server, nil))
		a.api.note("watch services", forbidden) // a fault by itself
		if text := log.String(); !strings.Contains(text, "API server "+server+" reachable again after 13s") ||
			!strings.Contains(text, "watch services: services is forbidden") {
			t.Errorf("log is\n%s", text)
		}
		if text := string(a.registry.Text()); !strings.Contains(text, `packetwalk_api_server_reachable{node="node0"} 1`) {
			t.Errorf("metrics:\n%s", text)
		}
		if r := get(conflict.ReadyPath); strings.Contains(r, "unreachable") {
			t.Errorf("readyz: %s", r)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestAPIServerSilent has an API server that swallows what is sent to it: as a server that accepts connections, and as an address that
// does not answer. Real watches report it within 30 seconds, once, in the log and at /readyz.
func TestAPIServerSilent(t *testing.T) {
	for name, dial := range map[string]func(context.Context) (net.Conn, error){
		"no connection": func(ctx context.Context) (net.Conn, error) {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(30 * time.Second): // client-go's
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
			}
		},
		"no answer": func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, far); _ = far.Close() }() // until the client closes
			return near, nil
		},
	} {
		for _, url := range []string{"http://203.0.113.9", "https://203.0.113.9"} {
			t.Run(name+" "+url, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var log bytes.Buffer
					o := options.Defaults()
					o.ServiceProxy, o.NodeName = false, "node0"
					a := newAgent(o, slog.New(slog.NewTextHandler(&log, nil)))
					a.api.url = url
					config := &rest.Config{Host: url, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
					config.Wrap(a.api.transport)
					watcher, err := kube.NewWatcher(config, a.api.note)
					if err == nil {
						err = watcher.WatchServices(config, "node0", func(string) {})
					}
					if err != nil {
						t.Fatal(err)
					}
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan struct{})
					go func() { watcher.Run(ctx); close(ended) }()
					time.Sleep(30 * time.Second)
					synctest.Wait()
					w := httptest.NewRecorder()
					a.serveReady(w, httptest.NewRequest(http.MethodGet, conflict.ReadyPath, nil))
					time.Sleep(5 * time.Minute)
					cancel()
					<-ended
					time.Sleep(time.Minute) // the last dials end
					said := "API server " + url + " unreachable since"
					if !strings.Contains(w.Body.String(), said) || strings.Count(log.String(), said) != 1 || strings.Contains(log.String(), "reachable again") {
						t.Errorf("readyz after 30s: %s\nlog: %s", w.Body, log.String())
					}
				})
			})
		}
	}
}

// TestMisconfigured: what is wrong with the ip-masq-agent's configuration does not make the service proxy unready; without it the pod has
// nothing else to do.
func TestMisconfigured(t *testing.T) {
	for _, proxy := range []bool{true, false} {
		o := options.Defaults()
		o.NodeName, o.MasqForm = "node0", "v2"
		o.ServiceProxy = false
		a := newAgent(o, slog.New(slog.DiscardHandler))
		a.ServiceProxy = proxy
		for _, f := range a.Families {
			a.health.Updated(f)
		}
		a.addMasqAgent(&fixedConfig{"nonMasqueradeCIDRs: [10.1.2.3/16]"})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { a.masq.Run(ctx); close(ended) }()
		eventually.Succeeds(t, time.Minute, func() error {
			if len(a.masq.Refusals()) == 0 {
				return errors.New("the configuration has not been read")
			}
			return nil
		})
		cancel()
		<-ended
		w := httptest.NewRecorder()
		a.serveReady(w, httptest.NewRequest(http.MethodGet, conflict.ReadyPath, nil))
		var r conflict.Ready
		if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if r.Ready != proxy || (w.Code == http.StatusOK) != proxy || len(r.Unready)+len(r.Problems) != 1 ||
			!strings.Contains(w.Body.String(), "write 10.1.0.0/16") {
			t.Errorf("service proxy %v: %d %s", proxy, w.Code, w.Body)
		}
	}
}

// fixedConfig is a ConfigMap of the ip-masq-agent that never changes.
type fixedConfig struct{ text string }

func (*fixedConfig) Run(ctx context.Context) { <-ctx.Done() }

func (*fixedConfig) Changed() <-chan struct{} {
	changed := make(chan struct{}, 1)
	changed <- struct{}{}
	return changed
}

func (f *fixedConfig) Snapshot() ([]*corev1.ConfigMap, bool) {
	return []*corev1.ConfigMap{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: userMap}, Data: map[string]string{"ip-masq-agent": f.text},
	}}, true
}

func (f *fixedConfig) Read(context.Context) ([]*corev1.ConfigMap, error) {
	maps, _ := f.Snapshot()
	return maps, nil
}

func (*fixedConfig) Warn(context.Context, *corev1.ConfigMap, string, string, string, string) error {
	return nil
}

// TestOwnCountersStartAtZero: an alert on an increase sees the first one.
func TestOwnCountersStartAtZero(t *testing.T) {
	o := options.Defaults()
	o.NodeName, o.ServiceProxy, o.Version = `no"de`, false, "v1.2.3"
	a := newAgent(o, slog.New(slog.DiscardHandler))
	a.addMasqAgent(nil)
	text := string(a.registry.Text())
	for name, kind := range a.registry.Kinds() {
		if own := strings.HasPrefix(name, "packetwalk_"); own && kind == "counter" && !strings.Contains(text, "\n"+name+"{") {
			t.Errorf("%s does not start at 0", name)
		}
	}
	if !regexp.MustCompile(`(?m)^packetwalk_build_info\{go_version="go[^"]+",version="v1.2.3",node="no\\"de"\} 1$`).MatchString(text) {
		t.Errorf("no build info in\n%s", text)
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && !strings.Contains(line, `node="no\"de"`) {
			t.Errorf("no node in %s", line)
		}
	}
}
