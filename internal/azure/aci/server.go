package aci

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"packetwalk.dev/internal/base/logs"
)

// Server is the resource provider's HTTP interface to a Service.
type Server struct {
	Service       Service
	Subscription  string
	ResourceGroup string
	Token         string // the bearer token of who may ask

	mu       sync.Mutex
	sessions map[string]session // by their ids
}

// session is one that was granted and not begun yet.
type session struct {
	password string
	expires  time.Time
	size     *terminalSize
	run      func(context.Context, *stream)
}

// sessionPatience is how long a session that was granted can be begun.
const sessionPatience = 30 * time.Second

// Handler answers requests.
func (s *Server) Handler() http.Handler {
	const group = "/subscriptions/{subscription}/resourceGroups/{resourceGroup}/providers/" + Type
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+group, s.in(s.list))
	mux.HandleFunc("GET "+group+"/{name}", s.in(s.get))
	mux.HandleFunc("PUT "+group+"/{name}", s.in(s.put))
	mux.HandleFunc("DELETE "+group+"/{name}", s.in(s.delete))
	mux.HandleFunc("GET "+group+"/{name}/containers/{container}/logs", s.in(s.logs))
	mux.HandleFunc("POST "+group+"/{name}/containers/{container}/attach", s.in(s.attach))
	mux.HandleFunc("POST "+group+"/{name}/containers/{container}/exec", s.in(s.exec))
	mux.HandleFunc("GET /sessions/{id}", s.begin)
	return mux
}

// in lets those in who may ask, about this resource group. What an answer is made of is encoded, an error in Azure's way.
func (s *Server) in(answer func(*http.Request) (int, any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, body, err := http.StatusOK, any(nil), s.admit(r)
		if err == nil {
			status, body, err = answer(r)
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				e = &Error{http.StatusInternalServerError, "InternalServerError", err.Error()}
			}
			status, body = e.Status, map[string]*Error{"error": e}
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(status)
		if body != nil {
			_ = json.NewEncoder(w).Encode(body) // the client may be gone
		}
	}
}

func (s *Server) admit(r *http.Request) error {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if subtle.ConstantTimeCompare([]byte(token), []byte(s.Token)) != 1 {
		return &Error{http.StatusUnauthorized, "InvalidAuthenticationToken", "The access token is invalid."}
	}
	if of := r.PathValue("subscription"); !strings.EqualFold(of, s.Subscription) {
		return &Error{http.StatusNotFound, "SubscriptionNotFound", "The subscription '" + of + "' could not be found."}
	}
	if of := r.PathValue("resourceGroup"); !strings.EqualFold(of, s.ResourceGroup) {
		return &Error{http.StatusNotFound, "ResourceGroupNotFound", "Resource group '" + of + "' could not be found."}
	}
	return nil
}

// groupList is a list as Azure answers it.
type groupList struct {
	Value []ContainerGroup `json:"value"`
}

func (s *Server) list(r *http.Request) (int, any, error) {
	all, err := s.Service.List(r.Context())
	answer := groupList{[]ContainerGroup{}}
	for _, g := range all {
		answer.Value = append(answer.Value, g.Listed())
	}
	return http.StatusOK, answer, err
}

func (s *Server) get(r *http.Request) (int, any, error) {
	g, err := s.Service.Get(r.Context(), r.PathValue("name"))
	return http.StatusOK, g.Public(), err
}

// maxGroup is the most bytes that a request for a group has; secrets are within it.
const maxGroup = 8 << 20

func (s *Server) put(r *http.Request) (int, any, error) {
	var g ContainerGroup
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxGroup)).Decode(&g); err != nil {
		return 0, nil, BadRequest("InvalidRequestContent", "The request content was invalid and could not be deserialized: %v", err)
	}
	g.Name = r.PathValue("name")
	g, err := s.Service.Put(r.Context(), g)
	return http.StatusCreated, g.Public(), err
}

func (s *Server) delete(r *http.Request) (int, any, error) {
	seconds, err := strconv.Atoi(orElse(r.URL.Query().Get("gracePeriodSeconds"), "30"))
	if err != nil || seconds < 0 {
		return 0, nil, BadRequest("InvalidParameter", "gracePeriodSeconds is not a number of 0 or more")
	}
	// The grace period and the UID are this lab's own: Azure deletes what has the name.
	err = s.Service.Delete(r.Context(), r.PathValue("name"), r.URL.Query().Get("uid"), time.Duration(seconds)*time.Second)
	if IsNotFound(err) {
		return http.StatusNoContent, nil, nil
	}
	return http.StatusOK, nil, err
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// logContent is a log as Azure answers it.
type logContent struct {
	Content string `json:"content"`
}

func (s *Server) logs(r *http.Request) (int, any, error) {
	var o logs.Options
	q := r.URL.Query()
	if err := json.Unmarshal([]byte(orElse(q.Get("options"), "{}")), &o); err != nil {
		return 0, nil, BadRequest("InvalidParameter", "options: %v", err)
	}
	if tail := q.Get("tail"); tail != "" {
		n, err := strconv.Atoi(tail)
		if err != nil {
			return 0, nil, BadRequest("InvalidParameter", "tail=%s is not a number", tail)
		}
		o.Tail = &n
	}
	o.Timestamps = o.Timestamps || q.Get("timestamps") == "true"
	o.Follow = false
	var b bytes.Buffer
	err := s.Service.Logs(r.Context(), r.PathValue("name"), r.PathValue("container"), o, &b)
	return http.StatusOK, logContent{b.String()}, err
}

// sessionGrant is where a session is begun, and what its first message must be.
type sessionGrant struct {
	URI      string `json:"webSocketUri"`
	Password string `json:"password"`
}

// addSession allows a session to start. size is the first size of its terminal, or nil for none.
func (s *Server) addSession(r *http.Request, size *terminalSize, run func(context.Context, *stream)) sessionGrant {
	id, password := rand.Text(), rand.Text()
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions == nil {
		s.sessions = map[string]session{}
	}
	for id, old := range s.sessions {
		if now.After(old.expires) {
			delete(s.sessions, id)
		}
	}
	s.sessions[id] = session{password, now.Add(sessionPatience), size, run}
	return sessionGrant{"wss://" + r.Host + "/sessions/" + id, password}
}

// execRequest is Azure's, whose command is one string, and this lab's fields.
type execRequest struct {
	Command   string        `json:"command,omitempty"`
	Size      *terminalSize `json:"terminalSize,omitempty"`
	Arguments []string      `json:"arguments,omitempty"`
	TTY       bool          `json:"tty,omitempty"`
	Stdin     bool          `json:"stdin,omitempty"`
}

func (s *Server) exec(r *http.Request) (int, any, error) {
	var e execRequest
	if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxGroup)).Decode(&e); err != nil || e.Command == "" {
		return 0, nil, BadRequest("InvalidRequestContent", "The request content was invalid: a command is needed.")
	}
	if err := s.checkContainer(r); err != nil {
		return 0, nil, err
	}
	group, container := r.PathValue("name"), r.PathValue("container")
	return http.StatusOK, s.addSession(r, e.Size, func(ctx context.Context, c *stream) {
		x := Exec{Command: append([]string{e.Command}, e.Arguments...), TTY: e.TTY, Stdout: c.writer(channelStdout)}
		if !e.TTY {
			x.Stderr = c.writer(channelStderr)
		}
		if e.Stdin {
			x.Stdin = c.stdin
		}
		if e.TTY {
			x.Resize = c.sizes
		}
		code, err := s.Service.Exec(ctx, group, container, x)
		c.end(code, err)
	}), nil
}

func (s *Server) attach(r *http.Request) (int, any, error) {
	o := logs.Options{Follow: true}
	if r.ContentLength != 0 {
		if err := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxGroup)).Decode(&o); err != nil {
			return 0, nil, BadRequest("InvalidRequestContent", "The request content was invalid: %v", err)
		}
	}
	if err := s.checkContainer(r); err != nil {
		return 0, nil, err
	}
	group, container := r.PathValue("name"), r.PathValue("container")
	return http.StatusOK, s.addSession(r, nil, func(ctx context.Context, c *stream) {
		c.end(0, s.Service.Logs(ctx, group, container, o, c.writer(channelStdout)))
	}), nil
}

// checkContainer returns an error if the request names a container that no group has.
func (s *Server) checkContainer(r *http.Request) error {
	g, err := s.Service.Get(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	for _, c := range g.Properties.Containers {
		if c.Name == r.PathValue("container") {
			return nil
		}
	}
	return &Error{http.StatusNotFound, "ContainerNotFound", "Container '" + r.PathValue("container") + "' not found in container group '" +
		g.Name + "'."}
}

// begin runs a session that was granted, once.
func (s *Server) begin(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	granted, ok := s.sessions[r.PathValue("id")]
	delete(s.sessions, r.PathValue("id"))
	s.mu.Unlock()
	if !ok || time.Now().After(granted.expires) {
		http.NotFound(w, r)
		return
	}
	upgrader := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }} // who has the password may
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // it has answered
	}
	defer conn.Close()
	conn.SetReadLimit(maxMessage)
	_ = conn.SetReadDeadline(time.Now().Add(sessionPatience))
	kind, password, err := conn.ReadMessage()
	if err != nil || kind != websocket.TextMessage || subtle.ConstantTimeCompare(password, []byte(granted.password)) != 1 {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(context.Background()) // the request's own ends with the upgrade
	defer cancel()
	c := newStream(conn)
	if granted.size != nil {
		c.resize(*granted.size)
	}
	go func() {
		defer cancel()
		c.receive()
	}()
	defer c.stdin.Close() // unread input must not block receive
	granted.run(ctx, c)
}
