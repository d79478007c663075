package nodeapi

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/base/logs"
)

func TestLogOptions(t *testing.T) {
	now := time.Unix(1000, 0)
	q, _ := url.ParseQuery("follow=true&tailLines=0&sinceSeconds=10&timestamps=true&limitBytes=5&previous=true")
	got, err := logOptions(q, now)
	want := logs.Options{Follow: true, Previous: true, Tail: new(0), Since: time.Unix(990, 0), Timestamps: true, LimitBytes: 5}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v %v", got, err)
	}
	if got, _ := logOptions(nil, now); got.Tail != nil {
		t.Errorf("all lines are %d", *got.Tail)
	}
	q, _ = url.ParseQuery("tailLines=-1&follow=perhaps&sinceTime=now")
	if _, err := logOptions(q, now); err == nil || len(strings.Split(err.Error(), "\n")) != 3 {
		t.Errorf("%v", err)
	}
}

// TestRefusal checks that a node without programs answers requests for them with its text, and only to the API server.
func TestRefusal(t *testing.T) {
	const text = "it runs no program: see there"
	h := newHandler(Config{ClientName: APIServerName, Refusal: text})
	for _, tt := range []struct {
		path, client string
		code         int
	}{
		{"/containerLogs/default/web-0/web", APIServerName, http.StatusBadRequest},
		{"/exec/default/web-0/web", APIServerName, http.StatusBadRequest},
		{"/attach/default/web-0/web", APIServerName, http.StatusBadRequest},
		{"/portForward/default/web-0", APIServerName, http.StatusBadRequest},
		{"/exec/default/web-0/web", "another", http.StatusForbidden},
		{"/healthz", APIServerName, http.StatusOK},
	} {
		t.Run(tt.client+tt.path, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, tt.path, nil)
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: tt.client}}}}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tt.code || strings.Contains(w.Body.String(), text) != (tt.code == http.StatusBadRequest) {
				t.Errorf("%d %q, want status %d", w.Code, w.Body, tt.code)
			}
			var status metav1.Status
			if stream := !strings.HasPrefix(tt.path, "/containerLogs/"); stream && tt.code == http.StatusBadRequest &&
				(json.Unmarshal(w.Body.Bytes(), &status) != nil || status.Message != text || status.Status != metav1.StatusFailure) {
				t.Errorf("%q is not a Status", w.Body)
			}
		})
	}
}
