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
	d := Details{APIVersion: apiVersion, Kind: "Details", ID: termsafe.Text(id), Sections: []inspect.Section{}, Unread: m.Unread, Readable: m.Readable}
	d.Object = inspect.KubernetesObject(&m.Objects, id)
	d.Sections = append(d.Sections, inspect.Machine(m.Host, m.Owners)...)
	writeJSON(w, http.StatusOK, d)
}

func (s *Server) rules(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	m, err := s.machine(r.Context(), query.Get("host"), query)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, Rules{
		APIVersion: apiVersion, Kind: "Rules", Host: termsafe.Text(query.Get("host")), Version: m.Version, Tables: inspect.Rules(m.Host), Unread: m.Unread,
		Readable: m.Readable,
	})
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
