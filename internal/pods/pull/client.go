// Package pull owns the fetching of images from the registries of the internet, for whoever asks for one: with the logins of the user who
// called us, from public addresses and the registries that the user allows beside them. It is the only way out that images have, and runs
// in the machine's network namespace, never in a lab's.
package pull

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"packetwalk.dev/internal/pods/images"
)

// longest is how long the pull of one image may take.
const longest = 30 * time.Minute

// A Client fetches images. It is safe for concurrent use.
type Client struct {
	allowed []Registry
	logins  *logins
	guard   *guard
}

// NewClient makes a client that also fetches from some registries at addresses that are not public.
func NewClient(allowed []Registry) *Client {
	return &Client{allowed, &logins{}, newGuard(allowed)}
}

// Load fetches an image into a store, whatever that has of the name.
func (c *Client) Load(ctx context.Context, store *images.Store, ref string) (img images.Image, err error) {
	err = c.with(ctx, ref, func(ctx context.Context, from *source) (err error) {
		img, err = store.Fetch(ctx, ref, from)
		return err
	})
	return img, err
}

// refresh fetches an image into a store unless what that has of the name is the same; fetched tells which.
func (c *Client) refresh(ctx context.Context, store *images.Store, ref string) (fetched bool, err error) {
	err = c.with(ctx, ref, func(ctx context.Context, from *source) error {
		m, err := from.Manifest(ctx)
		if err != nil {
			return err
		}
		if there, err := store.Manifest(ref); err == nil && there.Digest == m.Digest {
			return nil
		}
		fetched = true
		_, err = store.Fetch(ctx, ref, from)
		return err
	})
	return fetched && err == nil, err
}

// with runs f with a registry's side of an image, for not too long.
func (c *Client) with(ctx context.Context, ref string, f func(context.Context, *source) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("it is not pulled after %v", longest))
	defer cancel()
	from, err := c.source(ctx, ref)
	if err != nil {
		return err
	}
	return c.explain(ctx, from, f(ctx, from))
}

// IsPath reports whether what a user wrote cannot be meant as an image's name: it is none, or looks like an archive's.
func IsPath(s string) bool {
	_, err := name.ParseReference(s)
	last := path.Base(s)
	return err != nil || path.IsAbs(s) || strings.HasPrefix(s, ".") || slices.ContainsFunc([]string{".tar", ".tar.gz", ".tgz", ".zst", ".oci"},
		func(end string) bool { return strings.HasSuffix(last, end) })
}

// explain says of an error what to do.
func (c *Client) explain(ctx context.Context, from *source, err error) error {
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	host := from.ref.Context().RegistryStr()
	var refused *transport.Error
	if errors.As(err, &refused) {
		err = refusalError(host, refused)
		switch refused.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
			err = fmt.Errorf("%w: there is none, or it is for users who are logged in (docker login)", err)
		}
		if from.login != nil {
			err = fmt.Errorf("%w; its login: %w", err, from.login)
		}
	}
	return err
}

// refusalError returns a registry's refusal on one line. It is untrusted, so it is cut.
func refusalError(host string, refused *transport.Error) error {
	const most = 200 // bytes
	var words []string
	for _, d := range refused.Errors {
		words = append(words, strings.TrimSpace(string(d.Code)+" "+d.Message))
	}
	text := strings.Join(words, "; ")
	if len(text) > most {
		text = text[:most] + "…"
	}
	if text == "" {
		text = http.StatusText(refused.StatusCode)
	}
	return &statusError{refused.StatusCode, fmt.Sprintf("registry %s answers %d: %q", host, refused.StatusCode, text)}
}

// A statusError is what a registry that answers refuses.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return e.text }

// A source is a registry's side of one image.
type source struct {
	ref    name.Reference
	puller *remote.Puller
	login  error // why there is none
	root   *images.Manifest
}

func (c *Client) source(ctx context.Context, ref string) (*source, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("%q is no image reference such as nginx:1.27 or ghcr.io/user/app:v1", ref)
	}
	host := parsed.Context().RegistryStr()
	if plain(c.allowed, host) {
		if parsed, err = name.ParseReference(ref, name.Insecure); err != nil {
			return nil, err
		}
	}
	auth, err := c.logins.of(ctx, host)
	s := &source{ref: parsed, login: err}
	once := remote.Backoff{Steps: 1} // who asks tries again
	s.puller, err = remote.NewPuller(remote.WithTransport(c.guard), remote.WithAuth(auth), remote.WithRetryBackoff(once),
		remote.WithUserAgent("packetwalk"))
	return s, err
}

// Manifest implements [images.Source].
func (s *source) Manifest(ctx context.Context) (images.Manifest, error) {
	if s.root == nil {
		d, err := s.puller.Get(ctx, s.ref)
		if err != nil {
			return images.Manifest{}, err
		}
		s.root = &images.Manifest{MediaType: string(d.MediaType), Digest: d.Digest.String(), Content: d.Manifest}
	}
	return *s.root, nil
}

// Open implements [images.Source].
func (s *source) Open(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	ref := s.ref.Context().Digest(d.Digest.String())
	if d.MediaType.IsImage() || d.MediaType.IsIndex() {
		m, err := s.puller.Get(ctx, ref)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(bytes.NewReader(m.Manifest)), nil
	}
	l, err := s.puller.Layer(ctx, ref)
	if err != nil {
		return nil, err
	}
	return l.Compressed()
}
