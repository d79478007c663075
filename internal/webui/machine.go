package webui

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/answer/inspect"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/snapshot"
)

// Machine holds what is known of one box of the picture.
type Machine struct {
	// Host is its state; nil where it was not read, or the box is no machine.
	Host *snapshot.Host
	// Unread says why Host is nil; "" where the box is no machine.
	Unread string
	// Readable says that a Reading with Start would read it.
	Readable bool
	Objects  snapshot.Objects
	Owners   *explain.Owners
	// Version numbers the states that were read.
	Version int
}

// Reading says how a machine's state is to be had.
type Reading struct {
	// Version is that of the state to return if it is at hand. With 0 the state is read anew.
	Version int
	// Start starts a pod on a cluster's node if the state cannot be read otherwise.
	Start bool
}

// Details has what is known of one box.
type Details struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	ID         string            `json:"id"`
	Object     *inspect.Object   `json:"object,omitempty"`
	Sections   []inspect.Section `json:"sections"`
	Unread     string            `json:"unread,omitempty"`   // why there is no more
	Readable   bool              `json:"readable,omitempty"` // with start=1 there is
}

// NewDetails returns what is known of a box by its id.
func NewDetails(id string, m *Machine) *Details {
	return &Details{
		APIVersion: apiVersion, Kind: "Details", ID: termsafe.Text(id), Object: inspect.KubernetesObject(&m.Objects, id),
		Sections: append([]inspect.Section{}, inspect.Machine(m.Host, m.Owners)...), Unread: m.Unread, Readable: m.Readable,
	}
}

// Rules lists a machine's tables and chains.
type Rules struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Host       string          `json:"host"`
	Version    int             `json:"version"`
	Tables     []inspect.Table `json:"tables"`
	Unread     string          `json:"unread,omitempty"`
	Readable   bool            `json:"readable,omitempty"`
}

// NewRules returns the tables and chains of a machine by its id.
func NewRules(id string, m *Machine) *Rules {
	return &Rules{
		APIVersion: apiVersion, Kind: "Rules", Host: termsafe.Text(id), Version: m.Version, Tables: inspect.Rules(m.Host), Unread: m.Unread,
		Readable: m.Readable,
	}
}

// ChainRules holds a part of a chain's rules.
type ChainRules struct {
	Version int `json:"version"` // another one than was asked for: the tables are to be read again
	inspect.Page
}

// Hits holds what a search found.
type Hits struct {
	Version int           `json:"version"`
	Hits    []inspect.Hit `json:"hits"`
	More    int           `json:"more,omitempty"`
}

// numberOf returns a number of a query; 0 where it has none.
func numberOf(query url.Values, name string) int {
	n, err := strconv.Atoi(query.Get(name))
	if err != nil {
		return 0
	}
	return n
}

func (s *Server) machine(ctx context.Context, id string, query url.Values) (*Machine, error) {
	return s.subject.Machine(ctx, id, Reading{Version: numberOf(query, "version"), Start: query.Get("start") == "1"})
}

func (s *Server) details(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	id := query.Get("id")
	m, err := s.machine(r.Context(), id, query)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, NewDetails(id, m))
}

func (s *Server) rules(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	m, err := s.machine(r.Context(), query.Get("host"), query)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, NewRules(query.Get("host"), m))
}

func (s *Server) chain(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	m, err := s.machine(r.Context(), query.Get("host"), query)
	if err != nil {
		writeError(w, err)
		return
	}
	page, ok := inspect.ChainPage(m.Host, m.Owners, numberOf(query, "table"), numberOf(query, "chain"), numberOf(query, "offset"))
	if !ok && m.Version == numberOf(query, "version") {
		writeProblem(w, http.StatusNotFound, "no such chain")
		return
	}
	writeJSON(w, http.StatusOK, ChainRules{m.Version, page})
}

func (s *Server) find(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	m, err := s.machine(r.Context(), query.Get("host"), query)
	if err != nil {
		writeError(w, err)
		return
	}
	hits, more := inspect.Find(m.Host, query.Get("text"))
	writeJSON(w, http.StatusOK, Hits{m.Version, hits, more})
}
