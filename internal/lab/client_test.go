package lab

import (
	"errors"
	"net/http"
	"testing"

	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
)

// TestCheckStarting tells a lab that is being brought up from one that is up, and from one whose process has died.
func TestCheckStarting(t *testing.T) {
	claim := func(t *testing.T, d layout.Dir) {
		if err := d.Claim(); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(status int) func(*testing.T, layout.Dir) {
		return func(t *testing.T, d layout.Dir) {
			claim(t, d)
			l, err := lifecycle.ListenUnix(t.Context(), d.Socket())
			if err != nil {
				t.Fatal(err)
			}
			handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = w.Write([]byte("{}"))
			})
			go func() { _ = serve.New(handler, nil).Serve(t.Context(), l) }()
		}
	}
	for _, tt := range []struct {
		name     string
		prepare  func(*testing.T, layout.Dir)
		starting bool
	}{
		{"dead", func(*testing.T, layout.Dir) {}, false},
		{"up prepares", func(t *testing.T, d layout.Dir) {
			release, err := d.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(release)
		}, true},
		{"no socket yet", claim, true},
		{"not ready", answer(http.StatusServiceUnavailable), true},
		{"ready", answer(http.StatusOK), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := layout.Dir(t.TempDir())
			tt.prepare(t, d)
			err := CheckStarting(t.Context(), d)
			if _, starting := errors.AsType[*StartingError](err); starting != tt.starting {
				t.Errorf("got %v", err)
			}
			if p := StatusOf(t.Context(), d).Problems; tt.starting && (len(p) != 1 || p[0] != "the lab starts") {
				t.Errorf("problems %q", p)
			}
		})
	}
}
