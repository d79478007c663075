package az

import (
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Manager is Azure Resource Manager's HTTP interface to what az shows, for reading: lists by resource group and by subscription, and each
// resource by its id. It answers as Azure does, for Azure's own SDK.
type Manager struct {
	Lab   func() Lab // as it is at present
	Token string     // the bearer token of who may ask
}

// managerError is an error as Azure Resource Manager writes it ("Resource Manager REST API: error responses", learn.microsoft.com).
type managerError struct {
	status        int
	code, message string
}

func (e *managerError) Error() string { return e.code + ": " + e.message }

func newManagerError(status int, code, format string, values ...any) *managerError {
	return &managerError{status, code, fmt.Sprintf(format, values...)}
}

// ServeHTTP answers a request.
func (m *Manager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status := http.StatusOK
	body, refused := m.answer(r)
	if refused != nil {
		status, body = refused.status, object{"error": object{"code": refused.code, "message": refused.message}}
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

func (m *Manager) answer(r *http.Request) (any, *managerError) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case m.Token == "" || subtle.ConstantTimeCompare([]byte(token), []byte(m.Token)) != 1:
		return nil, newManagerError(http.StatusUnauthorized, "InvalidAuthenticationToken", "The access token is invalid.")
	case r.Method != http.MethodGet:
		return nil, newManagerError(http.StatusMethodNotAllowed, "MethodNotAllowed", "The lab's resources are changed by its own commands, not here.")
	case r.URL.Query().Get("api-version") == "":
		return nil, newManagerError(http.StatusBadRequest, "MissingApiVersionParameter",
			"The api-version query parameter (?api-version=) is required for all requests.")
	}
	l := m.Lab()
	l.Network = customers(l.Network)
	return resourcesAt(l, strings.Split(strings.Trim(r.URL.Path, "/"), "/"))
}

// resourcesAt answers for a path: subscriptions/S[/resourceGroups/G[/providers/N/T[/NAME[/CHILDREN[/NAME]]]]].
func resourcesAt(l Lab, path []string) (any, *managerError) {
	word := func(i int, s string) bool { return len(path) > i && strings.EqualFold(path[i], s) }
	if len(path) < 4 || !word(0, "subscriptions") {
		return nil, newManagerError(http.StatusNotFound, "NotFound", "There is nothing at this path in the lab.")
	}
	if !strings.EqualFold(path[1], l.Network.Subscription) {
		return nil, newManagerError(http.StatusNotFound, "SubscriptionNotFound", "The subscription '%s' could not be found.", path[1])
	}
	group := ""
	rest := path[2:]
	if word(2, "resourceGroups") {
		if group, rest = path[3], path[4:]; !l.hasGroup(group) {
			return nil, newManagerError(http.StatusNotFound, "ResourceGroupNotFound", "Resource group '%s' could not be found.", group)
		}
		if len(rest) == 0 {
			return l.resourceGroup(group), nil
		}
	}
	if len(rest) < 3 || !strings.EqualFold(rest[0], "providers") {
		return nil, newManagerError(http.StatusNotFound, "NotFound", "There is nothing at this path in the lab.")
	}
	kind := rest[1] + "/" + rest[2]
	all, ok, err := managed(l, kind)
	switch {
	case err != nil:
		return nil, newManagerError(http.StatusInternalServerError, "InternalServerError", "%v", err)
	case !ok:
		return nil, newManagerError(http.StatusNotFound, "InvalidResourceType", "The resource type '%s' is not one of the lab's.", kind)
	}
	if group != "" {
		all = slices.DeleteFunc(all, func(r any) bool { return !strings.EqualFold(groupOf(field(r, "id")), group) })
	}
	return selectResource(all, rest[3:], kind, group)
}

// selectResource lists resources, or finds the one that a path names, or a part of it.
func selectResource(all []any, path []string, kind, group string) (any, *managerError) {
	if len(path) == 0 {
		return object{"value": append([]any{}, all...)}, nil
	}
	i := slices.IndexFunc(all, func(r any) bool { return strings.EqualFold(field(r, "name"), path[0]) })
	if i < 0 {
		return nil, newManagerError(http.StatusNotFound, "ResourceNotFound",
			"The Resource '%s/%s' under resource group '%s' was not found.", kind, path[0], group)
	}
	if len(path) == 1 {
		return all[i], nil
	}
	properties, _ := all[i].(object)["properties"].(object)
	for k, v := range properties {
		if children, ok := v.([]any); ok && strings.EqualFold(k, path[1]) {
			return selectResource(children, path[2:], kind+"/"+path[1], group)
		}
	}
	return nil, newManagerError(http.StatusNotFound, "NotFound", "%s %s has no %s.", kind, path[0], path[1])
}

func (l Lab) hasGroup(name string) bool {
	groups := []string{l.Network.ResourceGroup, l.Network.NodeResourceGroup}
	for _, v := range l.Network.VNets {
		groups = append(groups, v.ResourceGroup)
	}
	return slices.ContainsFunc(groups, func(g string) bool { return g != "" && strings.EqualFold(g, name) })
}

// resourceGroup returns a resource group; that of the nodes is managed by the cluster.
func (l Lab) resourceGroup(name string) object {
	g := object{"id": fmt.Sprintf("/subscriptions/%s/resourceGroups/%s", l.Network.Subscription, name), "name": name,
		"type": "Microsoft.Resources/resourceGroups", "location": l.Network.Location, "properties": object{"provisioningState": "Succeeded"}}
	if c := l.Cluster; c != nil && strings.EqualFold(name, l.Network.NodeResourceGroup) {
		g["managedBy"] = resourceID(l.Network, c.Spec.Azure.ResourceGroup, kindCluster, c.Metadata.Name)
	}
	return g
}

// managed returns the resources of a kind as their providers answer; false where the lab has no such kind.
func managed(l Lab, kind string) (all []any, ok bool, err error) {
	r := newResources(l.Network)
	switch strings.ToLower(kind) {
	case "microsoft.network/loadbalancers":
		all, err = encoded(r.LoadBalancers)
	case "microsoft.network/networkinterfaces":
		all, err = encoded(r.Interfaces)
	case "microsoft.network/publicipaddresses":
		all, err = encoded(r.PublicIPAddresses)
	case "microsoft.network/virtualnetworks":
		all, err = encoded(r.VirtualNetworks)
	case "microsoft.network/routetables":
		all, err = encoded(r.RouteTables)
	case "microsoft.network/networksecuritygroups":
		all, err = encoded(r.SecurityGroups)
	case "microsoft.network/natgateways":
		all, err = encoded(r.NATGateways)
	case "microsoft.network/publicipprefixes": // which the lab has none of
	case "microsoft.containerservice/managedclusters":
		all, err = clusters(l)
		for i := range all {
			all[i] = unflatten(all[i].(object))
		}
	default:
		return nil, false, nil
	}
	return all, true, err
}

// encoded returns resources as they are encoded.
func encoded[T any](resources []T) (all []any, err error) {
	data, err := json.Marshal(resources)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	return all, err
}

// unflatten gives a resource of az its "properties" back, and their own names.
func unflatten(o object) object {
	r, properties := object{}, object{}
	for k, v := range o {
		switch k {
		case "id", "name", "type", "location", "tags", "sku", "identity":
			r[k] = v
		case "resourceGroup": // az adds it
		default:
			properties[providerName(k)] = provided(v)
		}
	}
	r["properties"] = properties
	return r
}

// providerNames are those that az writes in another way.
var providerNames = map[string]string{"dnsServiceIp": "dnsServiceIP", "enableRbac": "enableRBAC", "vnetSubnetId": "vnetSubnetID"}

func providerName(k string) string {
	if n := providerNames[k]; n != "" {
		return n
	}
	return k
}

func provided(v any) any {
	switch v := v.(type) {
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = provided(v[i])
		}
		return all
	case object:
		o := object{}
		for k, e := range v {
			if k != "resourceGroup" {
				o[providerName(k)] = provided(e)
			}
		}
		return o
	}
	return v
}
