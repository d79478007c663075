package arm

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"packetwalk.dev/internal/azure/vnet"
)

// operations are the long-running operations that clients may ask about ("Asynchronous API reference", azure-resource-manager-rpc). A change
// has taken effect when the answer to its request comes. Its operation lasts as long as the settings say.
type operations struct {
	mu  sync.Mutex
	all []operation // the oldest first
}

// An operation is a change of a resource, or an action on one.
type operation struct {
	id       string
	resource string    // the ID of the resource in lower case; "" for an action
	url      string    // where its state is
	ends     time.Time // when it has ended
	err      *Error    // why it failed
	result   any       // of an action
}

// maxOperations bounds the operations that are kept.
const maxOperations = 1000

// add adds an operation and gives it its ID.
func (o *operations) add(op operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, op)
	if len(o.all) > maxOperations {
		o.all = slices.Delete(o.all, 0, 1)
	}
}

func (o *operations) find(id string) (operation, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return find(o.all, func(op operation) bool { return op.id == strings.ToLower(id) })
}

// lastOf returns the last operation on a resource.
func (o *operations) lastOf(resource string) (last operation, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range slices.Backward(o.all) {
		if op.resource == strings.ToLower(resource) {
			return op, true
		}
	}
	return operation{}, false
}

// States of operations and resources.
const (
	stateInProgress = "InProgress" // of an operation
	stateUpdating   = "Updating"   // of a resource meanwhile
	stateFailed     = "Failed"
	stateSucceeded  = "Succeeded"
)

func (op operation) state(now time.Time) string {
	switch {
	case now.Before(op.ends):
		return stateInProgress
	case op.err != nil:
		return stateFailed
	}
	return stateSucceeded
}

// maxRetryAfter is the longest time between two questions about an operation that an answer asks for, as Azure's do.
const maxRetryAfter = 10 * time.Second

// setRetryAfter says when to ask again. A client that is told 0 asks at once, where Terraform's would wait 10 s without the header.
func (op operation) setRetryAfter(h http.Header, now time.Time) {
	h.Set("Retry-After", seconds(min(op.ends.Sub(now), maxRetryAfter)))
}

// seconds returns a time in whole seconds, rounded up and at least 0.
func seconds(d time.Duration) string {
	return strconv.Itoa(int(max(0, d+time.Second-1) / time.Second))
}

// start starts an operation and adds the headers by which a client follows it: with isResult also where its result will be.
func (s *Server) start(h http.Header, r *http.Request, n vnet.Network, op operation, isResult bool) {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it returns no error (Go 1.24)
	op.id = fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	now := time.Now()
	op.ends = now.Add(s.settings().Operation)
	at := func(kind string) string {
		return fmt.Sprintf("%s/subscriptions/%s/providers/%s/locations/%s/%s/%s?api-version=%s", origin(r), n.Subscription, provider, n.Location,
			kind, op.id, r.URL.Query().Get("api-version"))
	}
	op.url = at("operations")
	s.operations.add(op)
	h.Set("Azure-AsyncOperation", op.url)
	h.Set("Azure-AsyncNotification", "Enabled")
	if isResult {
		h.Set("Location", at("operationResults"))
	}
	op.setRetryAfter(h, now)
}

// operation answers for the state of an operation, or for its result. ok is false for another path than
// subscriptions/S/providers/Microsoft.Network/locations/L/operations/ID, or operationResults.
func (s *Server) operation(h http.Header, r *http.Request, path []string) (status int, body any, ok bool, err error) {
	if len(path) != 8 || !strings.EqualFold(path[3], provider) || !strings.EqualFold(path[4], "locations") {
		return 0, nil, false, nil
	}
	isResult := strings.EqualFold(path[6], "operationResults")
	if !isResult && !strings.EqualFold(path[6], "operations") {
		return 0, nil, false, nil
	}
	op, found := s.operations.find(path[7])
	if !found {
		return 0, nil, true, newError(http.StatusNotFound, "NotFound", "Operation %s was not found: the lab keeps the last %d.", path[7], maxOperations)
	}
	now := time.Now()
	state := op.state(now)
	if state == stateInProgress {
		op.setRetryAfter(h, now)
	}
	switch {
	case !isResult && state == stateFailed:
		return http.StatusOK, object{"status": state, "error": object{"code": op.err.Code, "message": op.err.Message}}, true, nil
	case !isResult:
		return http.StatusOK, object{"status": state}, true, nil
	case state == stateInProgress:
		h.Set("Location", origin(r)+r.URL.RequestURI())
		return http.StatusAccepted, nil, true, nil
	case state == stateFailed:
		return 0, nil, true, op.err
	case op.result == nil:
		return http.StatusNoContent, nil, true, nil
	}
	return http.StatusOK, op.result, true, nil
}

// checkIdle returns Azure's error for a resource that another operation is changing.
func (s *Server) checkIdle(resource string) error {
	if op, ok := s.operations.lastOf(resource); ok && op.state(time.Now()) == stateInProgress {
		return newError(http.StatusConflict, "AnotherOperationInProgress", "Another operation on this or dependent resource is in progress. To "+
			"retrieve status of the operation use uri: %s.", op.url)
	}
	return nil
}

// setProvisioningState gives a resource the state that its last operation left it in.
func (s *Server) setProvisioningState(o object) {
	op, ok := s.operations.lastOf(text(o, "id"))
	if !ok {
		return
	}
	switch op.state(time.Now()) {
	case stateInProgress:
		setState(o, stateUpdating)
	case stateFailed:
		setState(o, stateFailed)
	}
}

// setState sets the state of a resource and of all its parts.
func setState(v any, state string) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			setState(e, state)
		}
	case object:
		for k, e := range v {
			if k == "provisioningState" {
				v[k] = state
			} else {
				setState(e, state)
			}
		}
	}
}
