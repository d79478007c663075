package usercluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// silence is how long an API server may take to begin an answer, from the resolution of its name on.
const silence = 15 * time.Second

// patientTransport fails requests that the other side does not begin to answer in time. Those that create objects are not bounded, because
// they wait for webhooks.
type patientTransport struct {
	next     http.RoundTripper
	patience time.Duration
}

func (t *patientTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost {
		return t.next.RoundTrip(r)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	silent := fmt.Errorf("no answer within %s", t.patience)
	timer := time.AfterFunc(t.patience, func() { cancel(silent) })
	response, err := t.next.RoundTrip(r.WithContext(ctx))
	inTime := timer.Stop()
	if err == nil && inTime {
		response.Body = &cancelingBody{response.Body, cancel}
		return response, nil
	}
	if err == nil { // too late: its body ends with ctx
		_ = response.Body.Close()
		err = silent
	}
	if errors.Is(context.Cause(ctx), silent) {
		err = silent
	}
	cancel(err)
	return nil, err
}

// cancelingBody ends the context of a request with its answer.
type cancelingBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *cancelingBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}
