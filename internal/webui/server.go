package webui

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/base/termsafe"
)

// Subject answers what the page asks. Its methods may be called at the same time.
type Subject interface {
	// Network returns the network as it is now; open are groups whose pods are drawn one by one.
	Network(ctx context.Context, open []string) (*Network, error)
	// Answer walks. Its error is a QuestionError where another question may have an answer.
	Answer(ctx context.Context, q Question, open []string) (*Answer, error)
	// Machine returns what is known of a box of the picture by its id.
	Machine(ctx context.Context, id string, r Reading) (*Machine, error)
}

// QuestionError marks an error that another question would avoid.
type QuestionError struct{ Err error }

func (e *QuestionError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *QuestionError) Unwrap() error { return e.Err }

const (
	// tokenHeader carries the token of each request for data.
	tokenHeader = "Packetwalk-Token"
	// policy lets the page load its script, its style and data from this server, and nothing else.
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
	// mostQuery limits the query of a request.
	mostQuery = 16 << 10
	// answerTime limits one answer: on a cluster, pods on nodes have to start.
	answerTime = 5 * time.Minute
)

// Server serves the page.
type Server struct {
	subject Subject
	token   string
	host    string // of the address, as browsers send it
	mux     *http.ServeMux
	pace    time.Duration // of streams
}

// Listen returns a listener on this machine's own address.
func Listen(port int) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}

// NewServer returns the page's server for a listener's address, with a new token.
func NewServer(subject Subject, address net.Addr) *Server {
	s := &Server{subject: subject, token: rand.Text(), host: address.String(), mux: http.NewServeMux(), pace: streamPace}
	for path, file := range map[string]struct{ name, kind string }{
		"/{$}":      {"index.html", "text/html; charset=utf-8"},
		"/page.js":  {"page.js", "text/javascript; charset=utf-8"},
		"/page.css": {"page.css", "text/css; charset=utf-8"},
		"/icon.svg": {"icon.svg", "image/svg+xml"},
	} {
		data := mustRead(file.name)
		s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", file.kind)
			_, _ = w.Write(data)
		})
	}
	s.mux.HandleFunc("GET /api/v1/network", s.authorized(s.network))
	s.mux.HandleFunc("GET /api/v1/answer", s.authorized(s.answer))
	s.mux.HandleFunc("POST /api/v1/send", s.authorized(s.send))
	s.mux.HandleFunc("GET /api/v1/details", s.authorized(s.details))
	s.mux.HandleFunc("GET /api/v1/rules", s.authorized(s.rules))
	s.mux.HandleFunc("GET /api/v1/rules/chain", s.authorized(s.chain))
	s.mux.HandleFunc("GET /api/v1/rules/find", s.authorized(s.find))
	return s
}

// URL returns the address of the page. The token is in its fragment, which browsers do not send.
func (s *Server) URL() string { return "http://" + s.host + "/#token=" + url.QueryEscape(s.token) }

// Serve answers until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return serve.New(s, nil).Serve(ctx, l)
}

// ServeHTTP refuses requests that another site could have a browser send: of another host's name (DNS rebinding) or origin.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	origin := r.Header.Get("Origin")
	switch {
	case r.Host != s.host:
		http.Error(w, "unknown host; open the address that 'packetwalk ui' printed", http.StatusMisdirectedRequest)
	case origin != "" && origin != "http://"+s.host:
		http.Error(w, "request of another site refused", http.StatusForbidden)
	case len(r.URL.RawQuery) > mostQuery:
		http.Error(w, "question too long", http.StatusRequestURITooLong)
	default:
		s.mux.ServeHTTP(w, r)
	}
}

// authorized refuses requests without the token.
func (s *Server) authorized(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get(tokenHeader)), []byte(s.token)) != 1 {
			writeProblem(w, http.StatusUnauthorized, "the token is missing or of another run; open the address that 'packetwalk ui' printed")
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), answerTime)
		defer cancel()
		next(w, r.WithContext(ctx))
	}
}

func (s *Server) network(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Get("stream") == "1" {
		s.stream(w, r, query["open"])
		return
	}
	n, err := s.subject.Network(r.Context(), query["open"])
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, n)
}

// streamPace is the time between two looks at a network that changes.
const streamPace = 2 * time.Second

// stream sends the network, one document a line, whenever it changed, until the client goes away. An error ends the stream as its last line.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, open []string) {
	out := http.NewResponseController(w)
	var last []byte
	for {
		n, err := s.subject.Network(r.Context(), open)
		switch {
		case r.Context().Err() != nil:
			return
		case err != nil && last == nil:
			writeError(w, err)
			return
		case err != nil:
			_ = json.NewEncoder(w).Encode(Problem{strings.Split(termsafe.Text(err.Error()), "\n")})
			return
		}
		document, err := json.Marshal(n)
		if err != nil {
			return
		}
		if !bytes.Equal(document, last) {
			if last == nil {
				w.Header().Set("Content-Type", "application/x-ndjson")
			}
			last = document
			if _, err := w.Write(append(document, '\n')); err != nil || out.Flush() != nil {
				return
			}
		}
		if !n.Live {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(s.pace):
		}
	}
}

// questionOf reads the question of a query.
func questionOf(query url.Values) Question {
	return Question{From: query.Get("from"), To: query.Get("to"), Proto: query.Get("proto"), At: query.Get("at"), UID: query.Get("uid")}
}

// send sends a packet, the only request that acts.
func (s *Server) send(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	q := questionOf(query)
	q.Live = true
	a, err := s.subject.Answer(r.Context(), q, query["open"])
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, a)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	a, err := s.subject.Answer(r.Context(), questionOf(query), query["open"])
	switch {
	case err != nil:
		writeError(w, err)
	case query.Get("form") == "html":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Disposition", `attachment; filename="walk.html"`)
		_ = a.HTML(w) // the client is gone
	case query.Get("form") == "svg":
		w.Header().Set("Content-Type", "image/svg+xml")
		w.Header().Set("Content-Disposition", `attachment; filename="walk.svg"`)
		_ = a.SVG(w)
	default:
		writeJSON(w, http.StatusOK, a)
	}
}

// Problem is an error as the page gets it.
type Problem struct {
	Errors []string `json:"errors"`
}

func writeError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if _, ok := errors.AsType[*QuestionError](err); ok {
		status = http.StatusBadRequest
	}
	writeProblem(w, status, strings.Split(err.Error(), "\n")...)
}

func writeProblem(w http.ResponseWriter, status int, lines ...string) {
	writeJSON(w, status, Problem{lines})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone
}
