package agent

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// apiServer follows whether the API server answers: however many watches fail, that is one line of the log. It is safe for concurrent use.
type apiServer struct {
	url       string
	faults    *faults
	log       logf
	reachable *meter

	mu    sync.Mutex
	since time.Time // of the first request without an answer; zero: it answers
}

// apiServerFault is the fault of an API server that does not answer.
const apiServerFault = "API server"

// note takes the outcome of a request, such as "watch services".
func (s *apiServer) note(what string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	if !isUnanswered(err) {
		s.noteAnswer()
		s.faults.note(what, err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.note(what, nil) // the one fault of all requests says so
	if !s.since.IsZero() {
		return
	}
	s.since = time.Now()
	s.reachable.of().set(0)
	s.faults.set(apiServerFault, fmt.Sprintf("API server %s unreachable since %s: %v", s.url, s.since.Format(time.RFC3339), cause(err)))
}

func (s *apiServer) noteAnswer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reachable.of().set(1)
	if s.since.IsZero() {
		return
	}
	s.log("API server %s reachable again after %v", s.url, time.Since(s.since).Round(time.Second))
	s.faults.set(apiServerFault, "")
	s.since = time.Time{}
}

// isUnanswered reports whether a request failed without an answer of the API server: not resolved, not connected, not trusted, timed out.
func isUnanswered(err error) bool {
	var answer apierrors.APIStatus
	var failed *url.Error
	return !errors.As(err, &answer) && errors.As(err, &failed)
}

// cause is a failed request's error without its URL, which is another one for each watch.
func cause(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}
