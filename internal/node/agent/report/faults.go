package report

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
)

// FaultsPath has what the agent cannot do at present, as JSON: {"unhealthy": [reasons]}. Faults of the ip-masq-agent have a path of their
// own.
const FaultsPath = "/faults"

// FaultsLast is how long something must have failed before it is shown at FaultsPath. A moment without the API server is no fault of a node.
const FaultsLast = 10 * time.Second

// Faults holds what failed when it was tried last, by the purpose of the try. It is safe for concurrent use.
type Faults struct {
	logger Logger
	last   time.Duration
	mu     sync.Mutex
	now    map[string]fault
}

type fault struct {
	text  string
	since time.Time
}

// NewFaults returns faults without any, which are shown once they have lasted.
func NewFaults(logger Logger, last time.Duration) *Faults {
	return &Faults{logger: logger, last: last, now: map[string]fault{}}
}

// Note takes the outcome of a try; nil ends the fault of the try before. A new text is logged. A cancelled try is no fault.
func (f *Faults) Note(what string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	text := ""
	if err != nil {
		text = what + ": " + err.Error()
	}
	f.Set(what, text)
}

// Set makes text the fault; empty ends it.
func (f *Faults) Set(what, text string) {
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
		f.logger.Warnf("%s", now.text)
	}
	f.now[what] = now
}

// Of returns the fault of something, empty without one.
func (f *Faults) Of(what string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now[what].text
}

// ServeHTTP answers with the faults that have lasted.
func (f *Faults) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	texts := []string{}
	f.mu.Lock()
	for _, one := range f.now {
		if time.Since(one.since) >= f.last {
			texts = append(texts, one.text)
		}
	}
	f.mu.Unlock()
	slices.Sort(texts)
	WriteJSON(w, http.StatusOK, map[string][]string{"unhealthy": texts})
}
