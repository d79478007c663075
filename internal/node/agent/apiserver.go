package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"packetwalk.dev/internal/node/agent/metrics"
	"packetwalk.dev/internal/node/agent/report"
)

// apiServer follows whether the API server answers: however many watches fail, that is one line of the log. It hears of each request from
// the transport, because a watch of client-go hides requests that time out, and retries them for minutes. It is safe for concurrent use.
type apiServer struct {
	url       string
	faults    *report.Faults
	logger    report.Logger
	reachable *metrics.Metric

	mu    sync.Mutex
	since time.Time // of the first request without an answer; zero: it answers
}

// answerTime is how long the API server may take for the header of an answer. Watches have theirs at once, too.
const answerTime = 10 * time.Second

// transport returns a transport that notes whether requests are answered.
func (s *apiServer) transport(next http.RoundTripper) http.RoundTripper {
	return noteTransport{s, next}
}

type noteTransport struct {
	api  *apiServer
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (n noteTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	noted := make(chan struct{})
	late := time.AfterFunc(answerTime, func() {
		defer close(noted)
		n.api.noteSilence(fmt.Errorf("no answer within %v", answerTime))
	})
	answer, err := n.next.RoundTrip(r)
	if !late.Stop() {
		<-noted // else it could be noted after the answer
	}
	switch {
	case err == nil:
		n.api.noteAnswer()
	case r.Context().Err() == nil:
		n.api.noteSilence(err)
	}
	return answer, err
}

// apiServerFault is the fault of an API server that does not answer.
const apiServerFault = "API server"

// note takes the outcome of a request, such as "watch services".
func (s *apiServer) note(what string, err error) {
	switch {
	case errors.Is(err, context.Canceled):
	case isUnanswered(err):
		s.faults.Note(what, nil) // the one fault of all requests says so
		s.noteSilence(err)
	default:
		s.faults.Note(what, err)
	}
}

func (s *apiServer) noteSilence(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.since.IsZero() {
		return
	}
	s.since = time.Now()
	s.reachable.Of().Set(0)
	s.faults.Set(apiServerFault, fmt.Sprintf("API server %s unreachable since %s: %v", s.url, s.since.Format(time.RFC3339), cause(err)))
}

func (s *apiServer) noteAnswer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reachable.Of().Set(1)
	if s.since.IsZero() {
		return
	}
	s.logger.Infof("API server %s reachable again after %v", s.url, time.Since(s.since).Round(time.Second))
	s.faults.Set(apiServerFault, "")
	s.since = time.Time{}
}

// isUnanswered reports whether a request failed without an answer of the API server: not resolved, not connected, not trusted, timed out.
func isUnanswered(err error) bool {
	var answer apierrors.APIStatus
	var failed *url.Error
	return !errors.As(err, &answer) && errors.As(err, &failed)
}

// cause returns a failed request's error without its URL, which is another one for each watch.
func cause(err error) error {
	var failed *url.Error
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}
