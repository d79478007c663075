package arm

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
)

// Groups returns the names of the resource groups: the cluster's, those of VNets, and those that clients created.
func Groups(n vnet.Network) (all []string) {
	add := func(name string) {
		if name != "" && !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	add(n.ResourceGroup)
	add(n.NodeResourceGroup)
	for _, v := range n.VNets {
		add(v.ResourceGroup)
	}
	for _, id := range slices.Sorted(maps.Keys(n.Attributes)) {
		var created struct{ Name string }
		if isGroupID(id) && json.Unmarshal([]byte(n.Attributes[id]), &created) == nil {
			add(created.Name)
		}
	}
	return all
}

// isGroupID reports whether the ID of attributes is a resource group's.
func isGroupID(id string) bool { return !strings.Contains(id, "/providers/") }

func groupID(n vnet.Network, name string) string {
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s", n.Subscription, name)
}

func hasGroup(n vnet.Network, name string) bool {
	return slices.ContainsFunc(Groups(n), func(g string) bool { return strings.EqualFold(g, name) })
}

// resourceGroup returns a resource group; that of the nodes is managed by the cluster.
func (s *Server) resourceGroup(n vnet.Network, name string) (object, error) {
	g := object{"id": groupID(n, name), "name": name,
		"type": "Microsoft.Resources/resourceGroups", "location": n.Location, "properties": object{"provisioningState": stateSucceeded}}
	if text := n.Attributes[key(g)]; text != "" {
		var created object
		if err := json.Unmarshal([]byte(text), &created); err != nil {
			return nil, err
		}
		g["name"], g["tags"] = created["name"], created["tags"]
	}
	if s.Other == nil || !strings.EqualFold(name, n.NodeResourceGroup) {
		return g, nil
	}
	clusters, _, err := s.Other("microsoft.containerservice/managedclusters")
	for _, c := range clusters {
		g["managedBy"] = asObject(c)["id"]
	}
	return g, err
}

// groupPath is the length of a resource group's path: subscriptions/S/resourceGroups/G.
const groupPath = 4

// groupName is Azure's rule for the names of resource groups ("Naming rules and restrictions for Azure resources", learn.microsoft.com).
var groupName = regexp.MustCompile(`^[A-Za-z0-9_().-]{0,89}[A-Za-z0-9_()-]$`)

// changeGroup creates a resource group, changes the tags of one, or deletes one that has no resources.
func (s *Server) changeGroup(method, name string, text []byte) (status int, body any, err error) {
	status = http.StatusOK
	if err = s.Update(func(n *vnet.Network) error {
		exists, id := hasGroup(*n, name), strings.ToLower(groupID(*n, name))
		switch {
		case method == http.MethodPut:
			if !exists {
				status = http.StatusCreated
			}
			return putGroup(n, id, name, text)
		case method != http.MethodDelete:
			return newError(http.StatusMethodNotAllowed, "MethodNotAllowed", "The lab has no %s of resource groups.", method)
		case !exists:
			return newError(http.StatusNotFound, "ResourceGroupNotFound", "Resource group '%s' could not be found.", name)
		}
		if err := checkEmpty(*n, name); err != nil {
			return err
		}
		delete(n.Attributes, id)
		return nil
	}); err != nil || method == http.MethodDelete {
		return status, nil, err
	}
	body, err = s.resourceGroup(s.Network(), name)
	return status, body, err
}

// putGroup notes a resource group and its tags.
func putGroup(n *vnet.Network, id, name string, text []byte) error {
	want, err := decode(text)
	if err != nil {
		return err
	}
	if !groupName.MatchString(name) {
		return badRequest("InvalidResourceGroup", "The provided resource group name '%s' has these invalid characters or is too long.", name)
	}
	data, err := json.Marshal(object{"name": name, "tags": want["tags"]})
	if err != nil {
		return err
	}
	if n.Attributes == nil {
		n.Attributes = map[string]string{}
	}
	n.Attributes[id] = string(data)
	return nil
}

// checkEmpty returns an error for a resource group that is the cluster's, or has resources.
func checkEmpty(n vnet.Network, name string) error {
	if strings.EqualFold(name, n.ResourceGroup) || strings.EqualFold(name, n.NodeResourceGroup) {
		return unsupported("deleting a resource group of the cluster")
	}
	for _, k := range kinds {
		all, _, err := List(n, k.name)
		if err != nil {
			return err
		}
		for _, o := range all {
			if strings.EqualFold(groupOf(text(o, "id")), name) {
				return unsupported("deleting a resource group with resources: delete " + text(o, "id") + " first")
			}
		}
	}
	return nil
}
