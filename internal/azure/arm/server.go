package arm

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
)

// Server is Azure Resource Manager's HTTP interface to a network: lists by resource group and by subscription, each resource and its parts
// by their ids. Clients read and write them as on Azure. A change has taken effect when its answer comes, so no operation is long-running.
type Server struct {
	Network func() vnet.Network                     // as it is at present
	Update  func(func(n *vnet.Network) error) error // changes it, all or nothing
	Other   func(kind string) ([]any, bool, error)  // resources of other providers; false for a type that the lab has not
	Token   string                                  // the secret of who may ask: a bearer token, and every service principal's secret
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, body, err := s.answer(r)
	if err != nil {
		e := &Error{http.StatusInternalServerError, "InternalServerError", err.Error()}
		errors.As(err, &e)
		status, body = e.Status, object{"error": object{"code": e.Code, "message": e.Message}}
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	if status != http.StatusNoContent {
		_ = json.NewEncoder(w).Encode(body) // the client may be gone
	}
}

func (s *Server) answer(r *http.Request) (int, any, error) {
	if status, body, ok, err := s.login(r); ok {
		return status, body, err
	}
	if !s.isToken(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) {
		return 0, nil, newError(http.StatusUnauthorized, "InvalidAuthenticationToken", "The access token is invalid.")
	}
	if r.URL.Query().Get("api-version") == "" {
		return 0, nil, badRequest("MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required for all requests.")
	}
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if r.Method == http.MethodGet {
		body, err := s.get(path)
		return http.StatusOK, body, err
	}
	return s.change(r, path)
}

func (s *Server) isSecret(token string) bool {
	return s.Token != "" && subtle.ConstantTimeCompare([]byte(token), []byte(s.Token)) == 1
}

// maxBody is the most bytes that a request has.
const maxBody = 4 << 20

func (s *Server) change(r *http.Request, path []string) (status int, body any, err error) {
	p, err := s.path(path)
	if err != nil {
		return 0, nil, err
	}
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	if err != nil {
		return 0, nil, newError(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", "The request content has more than %d bytes.", maxBody)
	}
	conditions := Conditions{r.Header.Get("If-Match"), r.Header.Get("If-None-Match")}
	status = http.StatusOK
	err = s.Update(func(n *vnet.Network) (err error) {
		switch r.Method {
		case http.MethodPut:
			var isNew bool
			if body, isNew, err = Put(n, p, text, conditions); isNew {
				status = http.StatusCreated
			}
		case http.MethodPatch:
			body, err = Patch(n, p, text)
		case http.MethodDelete:
			var existed bool
			if existed, err = Delete(n, p, conditions); !existed {
				status = http.StatusNoContent
			}
		default:
			err = newError(http.StatusMethodNotAllowed, "MethodNotAllowed", "The lab has no %s of resources.", r.Method)
		}
		return err
	})
	return status, body, err
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

func hasGroup(n vnet.Network, name string) bool {
	return slices.ContainsFunc(groups(n), func(g string) bool { return strings.EqualFold(g, name) })
}

// resourceGroup returns a resource group; that of the nodes is managed by the cluster.
func (s *Server) resourceGroup(n vnet.Network, name string) (object, error) {
	g := object{"id": fmt.Sprintf("/subscriptions/%s/resourceGroups/%s", n.Subscription, name), "name": name,
		"type": "Microsoft.Resources/resourceGroups", "location": n.Location, "properties": object{"provisioningState": "Succeeded"}}
	if s.Other == nil || !strings.EqualFold(name, n.NodeResourceGroup) {
		return g, nil
	}
	clusters, _, err := s.Other("microsoft.containerservice/managedclusters")
	for _, c := range clusters {
		g["managedBy"] = asObject(c)["id"]
	}
	return g, err
}
