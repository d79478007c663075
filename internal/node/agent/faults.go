package agent

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
)

// faultsPath has what the agent cannot do at present, as JSON: {"unhealthy": [reasons]}. What the ip-masq-agent cannot do is at its
// own path.
const faultsPath = "/faults"

// faultsLast is how long something must have failed before others are told: a moment without the API server is no fault of a node.
const faultsLast = 10 * time.Second

// faults are what did not succeed when it was tried last, by what it was for. They are safe for concurrent use.
type faults struct {
	warn logf
	last time.Duration // faultsLast
	mu   sync.Mutex
	now  map[string]fault
}

type fault struct {
	text  string
	since time.Time
}

// note takes the outcome of a try; nil ends the fault of the try before. What is new is logged. To be told to stop is no fault.
func (f *faults) note(what string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	text := ""
	if err != nil {
		text = what + ": " + err.Error()
	}
	f.set(what, text)
}

// set makes text the fault; empty ends it.
func (f *faults) set(what, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, failed := f.now[what]
	if text == "" {
		delete(f.now, what)
		return
	}
	now := fault{text, time.Now()}
	if failed {
		now.since = before.since
	}
	if now.text != before.text {
		f.warn("%s", now.text)
	}
	f.now[what] = now
}

// of returns the fault of something, empty where there is none.
func (f *faults) of(what string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now[what].text
}

func (f *faults) serve(mux *http.ServeMux) {
	mux.HandleFunc(faultsPath, func(w http.ResponseWriter, _ *http.Request) {
		texts := []string{}
		f.mu.Lock()
		for _, one := range f.now {
			if time.Since(one.since) >= f.last {
				texts = append(texts, one.text)
			}
		}
		f.mu.Unlock()
		slices.Sort(texts)
		writeJSON(w, http.StatusOK, map[string][]string{"unhealthy": texts})
	})
}
