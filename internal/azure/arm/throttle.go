package arm

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Settings say how the server answers, for users who watch how clients wait and back off.
type Settings struct {
	Operation              time.Duration // how long a long-running operation lasts
	Reads, Writes, Deletes Limit         // of requests, for each principal
}

// A Limit is a token bucket: Bucket requests at once, and PerHour more in each hour. The zero value sets no limit.
type Limit struct{ Bucket, PerHour int }

// throttle counts requests ("Understand how Azure Resource Manager throttles requests", learn.microsoft.com).
type throttle struct {
	mu   sync.Mutex
	full map[string]time.Time // when a bucket will be full again, by principal and kind of request
}

// maxBuckets bounds the buckets that are kept: principals' names are their clients' choice.
const maxBuckets = 1000

// take takes a token and returns how many are left. Without one it returns how long it takes until there is one.
func (t *throttle) take(name string, l Limit, now time.Time) (left int, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	perToken := time.Hour / time.Duration(l.PerHour)
	capacity := time.Duration(l.Bucket) * perToken
	missing := min(max(0, t.full[name].Sub(now)), capacity)
	if wait = missing + perToken - capacity; wait <= 0 {
		missing, wait = missing+perToken, 0
	}
	if _, ok := t.full[name]; t.full == nil || !ok && len(t.full) >= maxBuckets {
		t.full = map[string]time.Time{}
	}
	t.full[name] = now.Add(missing)
	return int((capacity - missing) / perToken), wait
}

// checkLimit counts a request of a principal to the subscription. It adds Azure's headers and returns Azure's error for one too many.
func (s *Server) checkLimit(h http.Header, r *http.Request, path []string, principal string) error {
	if len(path) < 2 || !strings.EqualFold(path[0], "subscriptions") {
		return nil
	}
	settings := s.settings()
	kind, limit := "write", settings.Writes
	switch r.Method {
	case http.MethodGet:
		kind, limit = "read", settings.Reads
	case http.MethodDelete:
		kind, limit = "delete", settings.Deletes
	}
	if limit == (Limit{}) {
		return nil
	}
	left, wait := s.throttle.take(kind+" "+principal, limit, time.Now())
	h.Set(fmt.Sprintf("X-Ms-Ratelimit-Remaining-Subscription-%ss", kind), strconv.Itoa(left))
	if wait == 0 {
		return nil
	}
	h.Set("Retry-After", seconds(wait))
	return newError(http.StatusTooManyRequests, "SubscriptionRequestsThrottled", "Number of '%s' requests for subscription actor '%s:%s' exceeded. "+
		"Please try again after '%s' seconds after additional tokens are available. Refer to https://aka.ms/arm-throttling for additional information.",
		kind, path[1], principal, seconds(wait))
}
