package pull

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/imageref"
	"packetwalk.dev/internal/pods/images"
)

// A Policy says when images are pulled.
type Policy string

// The policies.
const (
	Always   Policy = "always"   // the registry is asked each time whether a tag means another image now
	Never    Policy = "never"    // only what is in the store
	IfNeeded Policy = "ifNeeded" // what is not in the store
)

// A Library is a store into which comes what is asked for, if it can be pulled. Several that ask for one image at once wait for one pull,
// which goes on when they go. What fails is remembered for a while, so that a machine without a network does not wait for it again and
// again.
type Library struct {
	open func() (*images.Store, error)
	life context.Context // of pulls

	slots   chan struct{} // one element for each pull
	flights singleflight.Group
	mu      sync.Mutex
	hosts   map[string]chan struct{} // one element for each pull from a registry
	failed  map[string]failure       // by reference, and by "//HOST"
}

// A failure is remembered until then.
type failure struct {
	err     error
	until   time.Time
	network bool // it looks as if there were no network, or no name server
}

// How long failures are remembered: of a registry that cannot be reached, or limits how often it is asked; and of one image.
const (
	unreachableTime = time.Minute
	limitedTime     = 5 * time.Minute
	refusedTime     = 20 * time.Second
)

// NewLibrary makes a library of the store that open opens. Pulls end with ctx.
func NewLibrary(ctx context.Context, open func() (*images.Store, error)) *Library {
	return &Library{open: open, life: ctx, slots: make(chan struct{}, pullsAtOnce), hosts: map[string]chan struct{}{},
		failed: map[string]failure{}}
}

// How many images are pulled beside each other, from all registries and from one; others wait. A registry that is slow has not all of them.
const (
	pullsAtOnce  = 12
	pullsFromOne = 4
)

// A Request is for one image.
type Request struct {
	Ref    string
	Policy Policy
	// Pulling is called before the registry is asked; it may be nil.
	Pulling func()
}

// Ensure has an image in the store, which it returns, if it can; pulled tells that it came now. The error is why it could not be opened, or
// the image not be pulled: the store may have an older one.
func (l *Library) Ensure(ctx context.Context, c *Client, r Request) (store *images.Store, pulled bool, err error) {
	if store, err = l.open(); err != nil {
		return nil, false, err
	}
	ref, ok := parse(r.Ref)
	if !ok || r.Policy == Never {
		return store, false, nil
	}
	_, digest := ref.(name.Digest)
	if (r.Policy != Always || digest) && has(store, r.Ref) {
		return store, false, nil
	}
	if err := l.remembered(ref); err != nil {
		return store, false, err
	}
	if r.Pulling != nil {
		r.Pulling()
	}
	flight := l.flights.DoChan(ref.Name(), func() (any, error) { return l.pull(c, store, ref, r.Ref) })
	select {
	case done := <-flight:
		fetched, _ := done.Val.(bool)
		return store, fetched, done.Err
	case <-ctx.Done():
		return store, false, context.Cause(ctx)
	}
}

// parse reads an image's name that a registry may know. "sha256:…" is none, though it looks like one.
func parse(s string) (name.Reference, bool) {
	ref, err := name.ParseReference(s)
	return ref, err == nil && !strings.HasPrefix(s, "sha256:")
}

// has reports whether a store has an image, be it a damaged one, which says so itself.
func has(store *images.Store, ref string) bool {
	_, err := store.Manifest(ref)
	return !errors.Is(err, images.ErrNotFound)
}

// pull pulls when there is a slot, unless what failed meanwhile tells that it would fail.
func (l *Library) pull(c *Client, store *images.Store, ref name.Reference, text string) (fetched bool, err error) {
	for _, slots := range []chan struct{}{l.slotsOf(hostKey(ref)), l.slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-l.life.Done():
			return false, context.Cause(l.life)
		}
	}
	if err := l.remembered(ref); err != nil {
		return false, err
	}
	fetched, err = c.refresh(l.life, store, text)
	l.recordResult(ref, err)
	return fetched, err
}

func (l *Library) slotsOf(host string) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hosts[host] == nil {
		l.hosts[host] = make(chan struct{}, pullsFromOne)
	}
	return l.hosts[host]
}

func hostKey(ref name.Reference) string { return "//" + ref.Context().RegistryStr() }

// remembered returns a recent failure that another try would meet again: of the image, of its registry, or of the network. A failure of the
// network needs two registries that report it, and no pull since.
func (l *Library) remembered(ref name.Reference) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, without := time.Now(), 0
	var network error
	for key, f := range l.failed {
		switch {
		case !now.Before(f.until):
		case key == hostKey(ref) || key == ref.Name():
			return f.err
		case f.network:
			without, network = without+1, f.err
		}
	}
	if without < 2 {
		return nil
	}
	return network
}

// recordResult records whether a pull succeeded.
func (l *Library) recordResult(ref name.Reference, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for key, f := range l.failed {
		if !now.Before(f.until) || f.network && err == nil {
			delete(l.failed, key)
		}
	}
	if err == nil || l.life.Err() != nil {
		return
	}
	key, d := scope(ref, err)
	l.failed[key] = failure{err, now.Add(d), isNetwork(err)}
}

// Forget forgets failures, because what may be asked has changed.
func (l *Library) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.failed)
}

// scope tells what else fails as this did, and for how long.
func scope(ref name.Reference, err error) (key string, d time.Duration) {
	var status *statusError
	var network net.Error
	switch {
	case errors.As(err, &status) && status.status == http.StatusTooManyRequests:
		return hostKey(ref), limitedTime
	case errors.Is(err, errAddress), errors.As(err, &status):
		return ref.Name(), refusedTime
	case isNetwork(err), errors.As(err, &network):
		return hostKey(ref), unreachableTime
	}
	return ref.Name(), refusedTime
}

// isNetwork tells of what it looks like where there is no network or no name server, though it may be one registry's fault.
func isNetwork(err error) bool {
	var lookup *net.DNSError
	return errors.As(err, &lookup) && !lookup.IsNotFound || errors.Is(err, unix.ENETUNREACH)
}

// Why says in words why an image is not there, and what to do; cause may be nil, when nothing was tried. [images.ErrNotFound] is in the
// error's chain.
func Why(ref string, cause error) error { return &missingImageError{ref, cause} }

type missingImageError struct {
	ref   string
	cause error
}

func (m *missingImageError) Error() string {
	remedy := fmt.Sprintf("load it: packetwalk image load %s, or docker save %s | packetwalk image load -", m.ref, m.ref)
	if strings.HasPrefix(m.ref, imageref.Repository+":") {
		remedy = "load it from the release, or from a clone after 'make image': packetwalk image load bin/packetwalk-image.tar"
	}
	if m.cause == nil {
		return fmt.Sprintf("image %s is not loaded: %s", m.ref, remedy)
	}
	return fmt.Sprintf("image %s cannot be pulled: %v; %s", m.ref, m.cause, remedy)
}

func (m *missingImageError) Unwrap() []error { return []error{images.ErrNotFound, m.cause} }
