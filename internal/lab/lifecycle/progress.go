package lifecycle

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// A Step is one thing that the lab says while it comes up: JSON, one a line, on the progress pipe.
type Step struct {
	Text    string  `json:"text,omitempty"`    // what has been done, as "API server answers"
	Seconds float64 `json:"seconds,omitempty"` // since the lab process began
	Ready   bool    `json:"ready,omitempty"`   // the cluster is ready: the last step
	Error   string  `json:"error,omitempty"`   // the lab gives up, and why: the last step
}

// NewReporter returns what writes steps as JSON, one a line. The reader may go away at any time.
func NewReporter(w io.Writer, begin time.Time) func(Step) {
	var mu sync.Mutex
	return func(s Step) {
		mu.Lock()
		defer mu.Unlock()
		s.Seconds = time.Since(begin).Seconds()
		line, _ := json.Marshal(s)
		_, _ = w.Write(append(line, '\n'))
	}
}
