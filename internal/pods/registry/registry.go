// Package registry owns the lab's registry: the read-only half of the OCI distribution specification, for the container runtimes of real
// nodes. It serves under all names that images have, which containerd says in each request (?ns=HOST). Where images come from is its
// caller's to say; it must not import anything of the project but base and pods/images.
package registry

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/pods/images"
)

// Images are what a registry has. Errors that have [images.ErrNotFound] in their chain are for whoever wants to run the image, and say what
// to do. Manifest returns the context's error if the image is still being pulled or built. The pull or build continues.
type Images interface {
	Manifest(ctx context.Context, ref string) (images.Manifest, error)
	Blob(digest string) (*os.File, error)
}

// The error codes of the specification that are used here ("Error Codes").
const (
	codeUnauthorized = "UNAUTHORIZED"
	codeDenied       = "DENIED"
	codeUnknownName  = "NAME_UNKNOWN"
	codeUnknownBlob  = "BLOB_UNKNOWN"
	codeUnsupported  = "UNSUPPORTED"
	codeInternal     = "UNKNOWN"
)

// Handler answers clients that send the token in an Authorization header, and tells those nothing that do not.
func Handler(i Images, token string) http.Handler { return handler(i, token, patience) }

// While an image is being pulled or built, each request for it is answered after patience, and its client is redirected to ask again:
// containerd waits 30 seconds for an answer (ResponseHeaderTimeout, core/remotes/docker/registry.go of version 2.4), and follows ten redirects.
const (
	patience = 20 * time.Second
	maxWaits = 10
)

func handler(i Images, token string, patience time.Duration) http.Handler {
	want := []byte(Authorization(token))
	return http.HandlerFunc(func(plain http.ResponseWriter, r *http.Request) {
		w := deadlineWriter{plain, http.NewResponseController(plain)}
		w.allow(0)
		defer w.allow(serve.RestTime) // net/http writes what is left
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			writeError(w, http.StatusUnauthorized, codeUnauthorized, "this registry is for the node's container runtime")
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			writeError(w, http.StatusMethodNotAllowed, codeUnsupported, "the lab's registry is read-only: images come by 'packetwalk image load'")
			return
		}
		if r.URL.Path == "/v2/" || r.URL.Path == "/v2" {
			w.WriteHeader(http.StatusOK)
			return
		}
		a := answer{w: w, r: r, images: i, patience: patience}
		if repository, ref, ok := split(r.URL.Path, "manifests"); ok {
			a.manifest(repository, ref)
		} else if _, digest, ok := split(r.URL.Path, "blobs"); ok {
			a.blob(digest)
		} else {
			writeError(w, http.StatusNotFound, codeUnknownName, "there is nothing at "+r.URL.Path)
		}
	})
}

// Authorization returns the header's value that has a token.
func Authorization(token string) string { return "Bearer " + token }

// split parts /v2/REPOSITORY/KIND/NAME; a repository's name may have any number of elements.
func split(path, kind string) (repository, name string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/v2/")
	at := strings.LastIndex(rest, "/"+kind+"/")
	if !ok || at < 1 {
		return "", "", false
	}
	repository, name = rest[:at], rest[at+len(kind)+2:]
	return repository, name, name != "" && !strings.Contains(name, "/")
}

// An answer is one to a client who may have it.
type answer struct {
	w        http.ResponseWriter
	r        *http.Request
	images   Images
	patience time.Duration
}

// manifest answers for a tag or a digest. What cannot be had is 403, because containerd then asks for the text, and has it in its error,
// which becomes the pod's event; of a 404 it says nothing.
func (a answer) manifest(repository, ref string) {
	host := a.r.URL.Query().Get("ns")
	if host == "" {
		writeError(a.w, http.StatusForbidden, codeDenied, "the registry's own address is not an image name; write one, such as shop:v1")
		return
	}
	separator := ":"
	if strings.HasPrefix(ref, "sha256:") {
		separator = "@"
	}
	ctx, cancel := context.WithTimeout(a.r.Context(), a.patience)
	defer cancel()
	ref = host + "/" + repository + separator + ref
	m, err := a.images.Manifest(ctx, ref)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		a.waitMore(ref)
	case errors.Is(err, images.ErrNotFound):
		writeError(a.w, http.StatusForbidden, codeDenied, err.Error())
	case err != nil:
		writeError(a.w, http.StatusForbidden, codeInternal, err.Error())
	default:
		a.head(m.MediaType, m.Digest)
		a.w.Header().Set("Content-Length", strconv.Itoa(len(m.Content)))
		if a.r.Method == http.MethodGet {
			_, _ = a.w.Write(m.Content) // the client may be gone
		}
	}
}

// waitMore redirects a HEAD request to itself, if the client may wait longer. A GET request for a tag waits only once: containerd sends it
// for the text of a refusal.
func (a answer) waitMore(ref string) {
	query := a.r.URL.Query()
	waits, _ := strconv.Atoi(query.Get("waits")) // 0 at first
	if a.r.Method != http.MethodHead || waits < 0 || waits >= maxWaits-1 {
		writeError(a.w, http.StatusForbidden, codeDenied, "image "+ref+" is still being pulled or built")
		return
	}
	query.Set("waits", strconv.Itoa(waits+1))
	again := url.URL{Path: a.r.URL.Path, RawQuery: query.Encode()}
	http.Redirect(a.w, a.r, again.String(), http.StatusTemporaryRedirect)
}

func (a answer) head(mediaType, digest string) {
	a.w.Header().Set("Content-Type", mediaType)
	a.w.Header().Set("Docker-Content-Digest", digest)
}

func (a answer) blob(digest string) {
	f, err := a.images.Blob(digest)
	switch {
	case errors.Is(err, images.ErrNotFound):
		writeError(a.w, http.StatusNotFound, codeUnknownBlob, err.Error())
	case err != nil:
		writeError(a.w, http.StatusInternalServerError, codeInternal, err.Error())
	default:
		defer f.Close()
		a.head("application/octet-stream", digest)
		http.ServeContent(a.w, a.r, "", time.Time{}, f)
	}
}

// writeError writes an error response ("Error Codes" in the distribution specification).
func writeError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	text, _ := json.Marshal(map[string]any{"errors": []map[string]string{{"code": code, "message": message}}}) // strings only
	_, _ = w.Write(text)                                                                                       // the client may be gone
}

// deadlineWriter is a response each piece of which must be taken in time.
type deadlineWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (p deadlineWriter) Write(b []byte) (int, error) {
	p.allow(serve.RestTime)
	return p.ResponseWriter.Write(b)
}

// allow gives what is written next a time; 0 is for ever. Writers that know no time limits, as those of tests, have none.
func (p deadlineWriter) allow(d time.Duration) {
	var end time.Time
	if d > 0 {
		end = time.Now().Add(d)
	}
	_ = p.control.SetWriteDeadline(end)
}

// Hosts returns a hosts.toml for containerd (github.com/containerd/containerd, docs/hosts.md). It makes containerd ask only the registry at
// address, for images of any registry. ca is the file of the authority that signed the registry's certificate.
func Hosts(address, ca, token string) string {
	return fmt.Sprintf("server = %q\ncapabilities = [\"pull\", \"resolve\"]\nca = %q\ndial_timeout = \"5s\"\n\n[header]\nAuthorization = %q\n",
		"https://"+address, ca, Authorization(token))
}
