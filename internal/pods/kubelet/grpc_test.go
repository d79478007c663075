package kubelet

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// healthServer answers as a gRPC server does, for the service "web" and for all.
func healthServer(t *testing.T, status string, answer []byte) (port int32) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		known := string(body) == "\x00\x00\x00\x00\x05\x0a\x03web" || string(body) == "\x00\x00\x00\x00\x00"
		if err != nil || r.ProtoMajor != 2 || r.URL.Path != "/grpc.health.v1.Health/Check" || r.Header.Get("Content-Type") != "application/grpc" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/grpc")
		if !known {
			w.Header().Set("Grpc-Status", "5")
			w.Header().Set("Grpc-Message", "unknown service")
			return
		}
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write(answer)
		w.Header().Set("Grpc-Status", status)
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return int32(s.Listener.Addr().(*net.TCPAddr).Port)
}

func TestHealth(t *testing.T) {
	well := []byte("\x00\x00\x00\x00\x02\x08\x01")
	tests := []struct {
		name, service, status string
		answer                []byte
		want                  string // of the error; "" for none
	}{
		{"serving", "web", "0", well, ""},
		{"all services", "", "0", well, ""},
		{"another field", "web", "0", []byte("\x00\x00\x00\x00\x05\x12\x01x\x08\x01"), ""},
		{"not serving", "web", "0", []byte("\x00\x00\x00\x00\x02\x08\x02"), "service unhealthy (responded with 2)"},
		{"unknown, which is the zero value", "web", "0", []byte("\x00\x00\x00\x00\x00"), "service unhealthy (responded with 0)"},
		{"no such service", "other", "0", well, `gRPC status "5": unknown service`},
		{"an error", "web", "14", well, `gRPC status "14"`},
		{"cut off", "web", "0", well[:6], "the answer is no HealthCheckResponse"},
		{"no message", "web", "0", []byte("\x00\x00\x00\x00\x01\xff"), "the answer is no HealthCheckResponse"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			at := target{ip: "127.0.0.1", dial: (&net.Dialer{}).DialContext}
			err := at.probe(ctx, &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{
				Port: healthServer(t, tt.status, tt.answer), Service: &tt.service}}})
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
