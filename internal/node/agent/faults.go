package agent

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
)

// faultsPath has what the agent cannot do at present, as JSON: {"healthy", "unhealthy": [reasons]}, with status 200, or 503 where there is any. What
// the ip-masq-agent and Calico's pools cannot do is at their own paths.
const faultsPath = "/faults"

// faults are what did not succeed when it was tried last, by what it was for. They are safe for concurrent use.
type faults struct {
	log func(format string, args ...any)
	mu  sync.Mutex
	now map[string]string
}

// note takes the outcome of a try; nil ends the fault of the try before. What is new is logged. To be told to stop is no fault.
func (f *faults) note(what string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.now, what)
		return
	}
	text := what + ": " + err.Error()
	if f.now[what] != text {
		f.log("%s", text)
	}
	f.now[what] = text
}

func (f *faults) serve(mux *http.ServeMux) {
	mux.HandleFunc(faultsPath, func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		texts := slices.Sorted(maps.Values(f.now))
		f.mu.Unlock()
		writeHealth(w, len(texts) == 0, texts)
	})
}
