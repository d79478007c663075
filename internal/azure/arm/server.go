package arm

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
)

// Server is Azure Resource Manager's HTTP interface to a network: lists by resource group and by subscription, each resource and its parts
// by their ids. Clients read and write them as on Azure, and follow long-running operations.
type Server struct {
	Network func() vnet.Network                     // as it is at present
	Update  func(func(n *vnet.Network) error) error // changes it, all or nothing
	Other   func(kind string) ([]any, bool, error)  // resources of other providers; false for a type that the lab has not
	Token   string                                  // the secret of who may ask: a bearer token, and every service principal's secret

	Settings func() Settings // as they are at present; nil for none

	operations operations
	throttle   throttle
}

func (s *Server) settings() (now Settings) {
	if s.Settings != nil {
		now = s.Settings()
	}
	return now
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, body, err := s.answer(w.Header(), r)
	if err != nil {
		e := &Error{http.StatusInternalServerError, "InternalServerError", err.Error()}
		errors.As(err, &e)
		status, body = e.Status, object{"error": object{"code": e.Code, "message": e.Message}}
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	if body != nil {
		_ = json.NewEncoder(w).Encode(body) // the client may be gone
	}
}

// answer returns an answer's status and body, and adds its headers. A body is nil for none.
func (s *Server) answer(h http.Header, r *http.Request) (int, any, error) {
	if status, body, ok, err := s.login(r); ok {
		return status, body, err
	}
	principal, ok := s.principal(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	if !ok {
		return 0, nil, newError(http.StatusUnauthorized, "InvalidAuthenticationToken", "The access token is invalid.")
	}
	if r.URL.Query().Get("api-version") == "" {
		return 0, nil, badRequest("MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required for all requests.")
	}
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if err := s.checkLimit(h, r, path, principal); err != nil {
		return 0, nil, err
	}
	switch r.Method {
	case http.MethodGet:
		if status, body, ok, err := s.operation(h, r, path); ok {
			return status, body, err
		}
		body, err := s.get(path)
		return http.StatusOK, body, err
	case http.MethodPost:
		return s.act(h, r, path)
	}
	return s.change(h, r, path)
}

func (s *Server) isSecret(token string) bool {
	return s.Token != "" && subtle.ConstantTimeCompare([]byte(token), []byte(s.Token)) == 1
}

// maxBody is the most bytes that a request has.
const maxBody = 4 << 20

func (s *Server) change(h http.Header, r *http.Request, path []string) (status int, body any, err error) {
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err != nil {
		return 0, nil, newError(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", "The request content has more than %d bytes.", maxBody)
	}
	if n := s.Network(); len(path) == groupPath && checkPlace(n, path[:2]) == nil && strings.EqualFold(path[2], "resourceGroups") {
		return s.changeGroup(r.Method, path[3], text)
	}
	p, err := s.path(path)
	if err != nil {
		return 0, nil, err
	}
	conditions := Conditions{r.Header.Get("If-Match"), r.Header.Get("If-None-Match")}
	resource := p.id(s.Network())
	if err := s.checkIdle(resource); err != nil {
		return 0, nil, err
	}
	accepted := false // what is left can only fail in the kernel
	err = s.Update(func(n *vnet.Network) (err error) {
		status = http.StatusOK
		switch r.Method {
		case http.MethodPut:
			var o object
			var isNew bool
			if o, isNew, err = Put(n, p, text, conditions); isNew {
				status = http.StatusCreated
			}
			setState(o, stateUpdating)
			body, accepted = o, err == nil
		case http.MethodPatch:
			body, err = Patch(n, p, text)
		case http.MethodDelete:
			accepted, err = Delete(n, p, conditions)
			if status = http.StatusNoContent; accepted {
				status = http.StatusAccepted
			}
		default:
			err = newError(http.StatusMethodNotAllowed, "MethodNotAllowed", "The lab has no %s of resources.", r.Method)
		}
		return err
	})
	if !accepted {
		return status, body, err
	}
	op := operation{resource: strings.ToLower(resource)}
	if err != nil {
		op.err = &Error{http.StatusInternalServerError, "InternalServerError", err.Error()}
	}
	s.start(h, r, s.Network(), op, r.Method == http.MethodDelete)
	return status, body, nil
}

// path reads the path of a resource of the network, or of a part of one.
func (s *Server) path(path []string) (Path, error) {
	notHere := newError(http.StatusNotFound, "NotFound", "The lab changes network resources alone, by their ids.")
	if n := len(path); n != 8 && n != 10 {
		return Path{}, notHere
	}
	p := Path{Group: path[3], Kind: path[6], Name: path[7]}
	if len(path) == 10 {
		p.ChildKind, p.Child = path[8], path[9]
	}
	if _, ok := kindOf(p.Kind); !ok || !strings.EqualFold(path[5], provider) {
		return p, notHere
	}
	n := s.Network()
	return p, checkPlace(n, path)
}

// checkPlace checks the subscription, and the resource group if there is one.
func checkPlace(n vnet.Network, path []string) error {
	switch {
	case len(path) < 2 || !strings.EqualFold(path[0], "subscriptions"):
		return newError(http.StatusNotFound, "NotFound", "There is nothing at this path in the lab.")
	case !strings.EqualFold(path[1], n.Subscription):
		return newError(http.StatusNotFound, "SubscriptionNotFound", "The subscription '%s' could not be found.", path[1])
	case len(path) >= 4 && strings.EqualFold(path[2], "resourceGroups") && !hasGroup(n, path[3]):
		return newError(http.StatusNotFound, "ResourceGroupNotFound", "Resource group '%s' could not be found.", path[3])
	}
	return nil
}

// get answers for a path: subscriptions/S[/resourceGroups/G[/providers/N/T[/NAME[/CHILDREN[/NAME]]]]].
func (s *Server) get(path []string) (any, error) {
	n := s.Network()
	if body, ok, err := s.account(n, path); ok {
		return body, err
	}
	if err := checkPlace(n, path); err != nil {
		return nil, err
	}
	group := ""
	rest := path[2:]
	if len(path) >= 4 && strings.EqualFold(path[2], "resourceGroups") {
		group, rest = path[3], path[4:]
		if len(rest) == 0 {
			return s.resourceGroup(n, group)
		}
	}
	if len(rest) == 2 && strings.EqualFold(rest[0], "providers") {
		return providerOf(rest[1]), nil
	}
	if len(rest) < 3 || !strings.EqualFold(rest[0], "providers") {
		return nil, newError(http.StatusNotFound, "NotFound", "There is nothing at this path in the lab.")
	}
	kind := rest[1] + "/" + rest[2]
	all, err := s.resources(n, rest[1], rest[2])
	if err != nil {
		return nil, err
	}
	if group != "" {
		all = slices.DeleteFunc(all, func(r any) bool { return !strings.EqualFold(groupOf(text(asObject(r), "id")), group) })
	}
	return selectResource(all, rest[3:], kind, group)
}

// resources returns all resources of a type.
func (s *Server) resources(n vnet.Network, of, name string) (all []any, err error) {
	kind, ok := of+"/"+name, false
	switch {
	case strings.EqualFold(of, provider):
		var objects []object
		objects, ok, err = List(n, name)
		for _, o := range objects {
			SetETag(o)
			s.setProvisioningState(o)
			all = append(all, o)
		}
		if !ok && slices.ContainsFunc(none, func(k string) bool { return strings.EqualFold(k, name) }) {
			return nil, nil
		}
	case strings.EqualFold(of, compute):
		all, ok = computeResources(n, name)
	case s.Other != nil:
		all, ok, err = s.Other(strings.ToLower(kind))
	}
	if err == nil && !ok {
		err = newError(http.StatusNotFound, "InvalidResourceType", "The resource type '%s' is not one of the lab's.", kind)
	}
	return all, err
}

// none are the types of the network provider that the lab has no resources of.
var none = []string{"publicIPPrefixes", "privateLinkServices"}

// providerOf describes a resource provider. Its types have no availability zones: the lab's region has none.
func providerOf(name string) object {
	return object{"namespace": name, "registrationState": "Registered", "resourceTypes": []any{}}
}

// selectResource lists resources, or finds the one that a path names, or a part of it.
func selectResource(all []any, path []string, kind, group string) (any, error) {
	if len(path) == 0 {
		return object{"value": append([]any{}, all...)}, nil
	}
	i := slices.IndexFunc(all, func(r any) bool { return strings.EqualFold(text(asObject(r), "name"), path[0]) })
	if i < 0 {
		return nil, newError(http.StatusNotFound, "ResourceNotFound",
			"The Resource '%s/%s' under resource group '%s' was not found.", kind, path[0], group)
	}
	if len(path) == 1 {
		return all[i], nil
	}
	for k, v := range asObject(asObject(all[i])["properties"]) {
		if children, ok := v.([]any); ok && strings.EqualFold(k, path[1]) {
			return selectResource(children, path[2:], kind+"/"+path[1], group)
		}
	}
	return nil, newError(http.StatusNotFound, "NotFound", "%s %s has no %s.", kind, path[0], path[1])
}
