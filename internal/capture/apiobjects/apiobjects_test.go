package apiobjects

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// TestUnread: an API server that does not answer is one reason, and not one for each list.
func TestUnread(t *testing.T) {
	at := func(path, why string) error {
		return fmt.Errorf("%s: %w", path, &url.Error{Op: "Get", URL: "https://127.0.0.1:1" + path, Err: errors.New(why)})
	}
	if err := unread([]error{nil, nil}); err != nil {
		t.Errorf("nothing is wrong: %v", err)
	}
	err := unread([]error{at("/api/v1/pods", "connection refused"), at("/api/v1/nodes", "connection refused")})
	if err == nil || err.Error() != "the API server does not answer: connection refused" {
		t.Errorf("nobody answers: %v", err)
	}
	for _, mixed := range [][]error{
		{nil, at("/api/v1/nodes", "timeout")}, {at("/api/v1/pods", "timeout"), nil},
		{at("/api/v1/pods", "refused"), at("/api/v1/nodes", "timeout")},
		{at("/api/v1/pods", "refused"), errors.New("/api/v1/nodes: forbidden")},
	} {
		err := unread(mixed)
		for _, part := range mixed {
			if part != nil && (err == nil || !strings.Contains(err.Error(), part.Error())) {
				t.Errorf("%v lacks %q", err, part)
			}
		}
	}
}
