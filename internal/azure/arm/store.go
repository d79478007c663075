package arm

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"packetwalk.dev/internal/azure/vnet"
)

// Error is an error as Azure Resource Manager writes it ("Resource Manager REST API: error responses", learn.microsoft.com).
type Error struct {
	Status        int // HTTP's
	Code, Message string
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

func newError(status int, code, format string, values ...any) *Error {
	return &Error{status, code, fmt.Sprintf(format, values...)}
}

func badRequest(code, format string, values ...any) *Error {
	return newError(http.StatusBadRequest, code, format, values...)
}

// unsupported returns the error for what Azure has and the lab's network has not.
func unsupported(what string) *Error {
	return badRequest("NotSupportedByLab", "The lab's network does not support %s.", what)
}

// object is a resource as it is encoded.
type object = map[string]any

// A kind is a type of resources that a network has.
type kind struct {
	name    string   // loadBalancers; of the provider Microsoft.Network
	chosen  []string // fields that the network's resources say by default, and a client's value is kept of
	objects func(Resources) ([]object, error)
	// set replaces the resource of this name, or adds it.
	set func(r *Resources, name string, o object) error
	// remove removes the resource of this name.
	remove func(r *Resources, name string)
}

func newKind[T any](name string, field func(*Resources) *[]*T, nameOf func(*T) *string, chosen ...string) kind {
	index := func(r *Resources, name string) int {
		return slices.IndexFunc(*field(r), func(t *T) bool { return strings.EqualFold(value(nameOf(t)), name) })
	}
	return kind{
		name:    name,
		chosen:  chosen,
		objects: func(r Resources) ([]object, error) { return encode(*field(&r)) },
		set: func(r *Resources, name string, o object) error {
			data, err := json.Marshal(o)
			if err != nil {
				return err
			}
			one := new(T)
			if err := json.Unmarshal(data, one); err != nil {
				return badRequest("InvalidRequestContent", "The request content was invalid and could not be deserialized: '%v'.", err)
			}
			all := field(r)
			if i := index(r, name); i >= 0 {
				(*all)[i] = one
			} else {
				*all = append(*all, one)
			}
			return nil
		},
		remove: func(r *Resources, name string) {
			if i := index(r, name); i >= 0 {
				*field(r) = slices.Delete(*field(r), i, i+1)
			}
		},
	}
}

const provider = "Microsoft.Network"

var kinds = []kind{
	newKind("loadBalancers", func(r *Resources) *[]*armnetwork.LoadBalancer { return &r.LoadBalancers },
		func(l *armnetwork.LoadBalancer) *string { return l.Name }),
	newKind("networkInterfaces", func(r *Resources) *[]*armnetwork.Interface { return &r.Interfaces },
		func(i *armnetwork.Interface) *string { return i.Name }),
	newKind("publicIPAddresses", func(r *Resources) *[]*armnetwork.PublicIPAddress { return &r.PublicIPAddresses },
		func(p *armnetwork.PublicIPAddress) *string { return p.Name }, "sku", "publicIPAllocationMethod", "idleTimeoutInMinutes"),
	newKind("virtualNetworks", func(r *Resources) *[]*armnetwork.VirtualNetwork { return &r.VirtualNetworks },
		func(v *armnetwork.VirtualNetwork) *string { return v.Name }),
	newKind("routeTables", func(r *Resources) *[]*armnetwork.RouteTable { return &r.RouteTables },
		func(t *armnetwork.RouteTable) *string { return t.Name }),
	newKind("networkSecurityGroups", func(r *Resources) *[]*armnetwork.SecurityGroup { return &r.SecurityGroups },
		func(g *armnetwork.SecurityGroup) *string { return g.Name }),
	newKind("natGateways", func(r *Resources) *[]*armnetwork.NatGateway { return &r.NATGateways },
		func(g *armnetwork.NatGateway) *string { return g.Name }),
}

func kindOf(name string) (kind, bool) {
	return find(kinds, func(k kind) bool { return strings.EqualFold(k.name, name) })
}

// encode returns resources as they are encoded.
func encode[T any](resources []T) (all []object, err error) {
	data, err := json.Marshal(resources)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	return all, err
}

// List returns the network's resources of a type such as loadBalancers, with what clients wrote of them. ok is false for another type.
func List(n vnet.Network, name string) (all []object, ok bool, err error) {
	k, ok := kindOf(name)
	if !ok {
		return nil, false, nil
	}
	all, err = k.objects(NewResources(Visible(n)))
	for _, o := range all {
		if text := n.Attributes[key(o)]; text != "" {
			var more object
			if err := json.Unmarshal([]byte(text), &more); err != nil {
				return nil, true, err
			}
			k.overlay(o, more)
		}
	}
	return all, true, err
}

// key returns the key of a resource's attributes.
func key(o object) string {
	id, _ := o["id"].(string)
	return strings.ToLower(id)
}

// A Path names a resource or a part of one: loadBalancers/kubernetes/probes/web.
type Path struct {
	Group, Kind, Name string
	ChildKind, Child  string // of a part; else empty
}

// id returns the ID of the resource that the path names, without its part.
func (p Path) id(n vnet.Network) string {
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/%s/%s/%s", n.Subscription, p.Group, provider, p.Kind, p.Name)
}

// Get returns the resource or the part of one that a path names, with its ETag.
func Get(n vnet.Network, p Path) (object, error) {
	o, err := get(n, p)
	if err != nil || p.ChildKind == "" {
		return o, err
	}
	part, ok := find(children(o, p.ChildKind), func(c object) bool { return strings.EqualFold(text(c, "name"), p.Child) })
	if !ok {
		return nil, newError(http.StatusNotFound, "NotFound", "Resource %s/%s/%s not found.", p.id(n), p.ChildKind, p.Child)
	}
	part["etag"] = o["etag"]
	return part, nil
}

func get(n vnet.Network, p Path) (object, error) {
	all, ok, err := List(n, p.Kind)
	if !ok {
		return nil, newError(http.StatusNotFound, unknownType, "The resource type '%s/%s' is not one of the lab's.", provider, p.Kind)
	}
	if err != nil {
		return nil, err
	}
	o, ok := find(all, func(o object) bool { return strings.EqualFold(text(o, "id"), p.id(n)) })
	if !ok {
		return nil, newError(http.StatusNotFound, "ResourceNotFound", "The Resource '%s/%s/%s' under resource group '%s' was not found. "+
			"For more details please go to https://aka.ms/ARMResourceNotFoundFix", provider, p.Kind, p.Name, p.Group)
	}
	SetETag(o)
	return o, nil
}

// SetETag adds a resource's entity tag. It depends on what the resource says itself, not on what others say of it.
func SetETag(o object) {
	delete(o, "etag")
	others := []string{"backendIPConfigurations", "ipConfiguration", "ipConfigurations/", "networkInterfaces", "subnets/", "loadBalancingRules/"}
	if strings.HasSuffix(text(o, "type"), "/publicIPAddresses") {
		others = append(others, "natGateway")
	}
	own := without(o, others...)
	data, _ := json.Marshal(own) // of what was decoded from JSON
	sum := sha256.Sum256(data)
	o["etag"] = fmt.Sprintf(`W/"%x-%x-%x-%x-%x"`, sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// without returns a copy of a value without the fields of these names. A name that ends with a slash means lists of references alone, whose
// elements have an id and nothing else.
func without(v any, names ...string) any {
	switch v := v.(type) {
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = without(v[i], names...)
		}
		return all
	case object:
		o := object{}
		for k, e := range v {
			if slices.Contains(names, k) || slices.Contains(names, k+"/") && isReferences(e) {
				continue
			}
			o[k] = without(e, names...)
		}
		return o
	}
	return v
}

// isReferences reports whether a value is a list of objects with an id and nothing else, or an empty list.
func isReferences(v any) bool {
	list, ok := v.([]any)
	return ok && !slices.ContainsFunc(list, func(e any) bool {
		o, ok := e.(object)
		return !ok || len(o) != 1 || o["id"] == nil
	})
}

// Put makes a resource, or a part of one, what a body says, and reports whether it is new.
func Put(n *vnet.Network, p Path, body []byte, c Conditions) (o object, isNew bool, err error) {
	want, err := decode(body)
	if err != nil {
		return nil, false, err
	}
	before, err := get(*n, Path{Group: p.Group, Kind: p.Kind, Name: p.Name})
	if isMissing(err) && p.ChildKind == "" {
		before, err = nil, nil
	}
	if err != nil {
		return nil, false, err
	}
	if err := c.check(before); err != nil {
		return nil, false, err
	}
	if isNew = before == nil; isNew {
		if err := checkUnique(*n, p); err != nil {
			return nil, false, err
		}
	}
	if p.ChildKind != "" {
		isNew = setChild(before, p, want)
		want = before
	}
	want["id"], want["name"] = p.id(*n), p.Name
	if err := checkNames(want); err != nil {
		return nil, false, err
	}
	if before != nil {
		want["name"] = before["name"]
	}
	if err := write(n, p, want); err != nil {
		return nil, false, err
	}
	o, err = Get(*n, p)
	if isMissing(err) {
		err = badRequest("NotSupportedByLab", "The lab has no %s named %s in resource group %s.", p.Kind, p.Name, p.Group)
	}
	return o, isNew, err
}

// checkUnique returns an error for a new resource whose name one of another resource group has: the network's resources have names alone.
func checkUnique(n vnet.Network, p Path) error {
	all, _, err := List(n, p.Kind)
	if err != nil {
		return err
	}
	if other, ok := find(all, func(o object) bool { return strings.EqualFold(text(o, "name"), p.Name) }); ok {
		return unsupported(fmt.Sprintf("two %s of one name: there is %s", p.Kind, text(other, "id")))
	}
	return nil
}

// Patch replaces the tags of a resource: all that PATCH changes of the network provider's resources.
func Patch(n *vnet.Network, p Path, body []byte) (object, error) {
	change, err := decode(body)
	if err != nil {
		return nil, err
	}
	o, err := get(*n, p)
	if err != nil {
		return nil, err
	}
	o["tags"] = change["tags"]
	if err := write(n, p, o); err != nil {
		return nil, err
	}
	return get(*n, p)
}

// Delete removes a resource or a part of one. It reports false for one that does not exist.
func Delete(n *vnet.Network, p Path, c Conditions) (bool, error) {
	o, err := get(*n, Path{Group: p.Group, Kind: p.Kind, Name: p.Name})
	if isMissing(err) {
		return false, nil
	}
	if err == nil {
		err = c.check(o)
	}
	if err != nil {
		return false, err
	}
	if p.ChildKind != "" {
		if !removeChild(o, p) {
			return false, nil
		}
		return true, write(n, p, o)
	}
	if err := checkUnused(o, p); err != nil {
		return false, err
	}
	return true, apply(n, func(r *Resources) error {
		k, _ := kindOf(p.Kind)
		k.remove(r, text(o, "name"))
		if strings.EqualFold(p.Kind, "loadBalancers") {
			r.leavePools(text(o, "id"))
		}
		return nil
	})
}

// leavePools takes all NICs out of a load balancer's pools.
func (r *Resources) leavePools(lb string) {
	for _, nic := range r.Interfaces {
		for _, c := range nic.Properties.IPConfigurations {
			c.Properties.LoadBalancerBackendAddressPools = slices.DeleteFunc(c.Properties.LoadBalancerBackendAddressPools,
				func(p *armnetwork.BackendAddressPool) bool {
					return strings.HasPrefix(strings.ToLower(*p.ID), strings.ToLower(lb)+"/")
				})
		}
	}
}

// checkUnused returns Azure's error for a resource that others use.
func checkUnused(o object, p Path) error {
	id, properties := text(o, "id"), asObject(o["properties"])
	switch strings.ToLower(p.Kind) {
	case "networkinterfaces":
		return badRequest("NicInUse", "Network Interface %s is used by existing resource %s. In order to delete the network interface, it must be "+
			"dissociated from the resource.", id, text(asObject(properties["virtualMachine"]), "id"))
	case "publicipaddresses":
		user := text(asObject(properties["ipConfiguration"]), "id") + text(asObject(properties["natGateway"]), "id")
		if user != "" {
			return badRequest("PublicIPAddressCannotBeDeleted", "Public IP address %s can not be deleted since it is still allocated to resource %s. "+
				"In order to delete the public IP, disassociate/detach the Public IP address from the resource.", id, user)
		}
	case "networksecuritygroups", "routetables", "natgateways":
		for _, field := range []string{"subnets", "networkInterfaces"} {
			for _, user := range listOf(properties[field]) {
				code := map[string]string{"networksecuritygroups": "InUseNetworkSecurityGroupCannotBeDeleted",
					"routetables": "InUseRouteTableCannotBeDeleted", "natgateways": "InUseNatGatewayCannotBeDeleted"}[strings.ToLower(p.Kind)]
				return badRequest(code, "%s cannot be deleted because it is in use by the following resources: %s.", id, text(user, "id"))
			}
		}
	}
	return nil
}

// write makes a resource of the network what an object says, and keeps what the network has no field for.
func write(n *vnet.Network, p Path, want object) error {
	k, _ := kindOf(p.Kind)
	if id := key(want); n.Attributes[id] == "" { // the resource's place, which its resource group is read from
		n.Attributes = maps.Clone(n.Attributes)
		if n.Attributes == nil {
			n.Attributes = map[string]string{}
		}
		n.Attributes[id] = "{}"
	}
	if err := apply(n, func(r *Resources) error { return k.set(r, p.Name, want) }); err != nil {
		return err
	}
	all, err := k.objects(NewResources(Visible(*n)))
	if err != nil {
		return err
	}
	o, ok := find(all, func(o object) bool { return strings.EqualFold(text(o, "id"), p.id(*n)) })
	if !ok {
		return nil // Put says so
	}
	delete(want, "etag")
	dropStandardFields(want)
	k.subtract(want, o)
	data, err := json.Marshal(want)
	if err != nil {
		return err
	}
	n.Attributes[key(o)] = string(data)
	return nil
}

// dropStandardFields takes off a Basic load balancer's rules what Azure does not show of them: whether they serve outbound flows.
func dropStandardFields(o object) {
	if !strings.EqualFold(text(asObject(o["sku"]), "name"), vnet.SKUBasic) {
		return
	}
	for _, rule := range children(o, "loadBalancingRules") {
		delete(asObject(rule["properties"]), "disableOutboundSnat")
	}
}

// apply changes the network by a change of its resources. Attributes of resources that are gone go with them.
func apply(n *vnet.Network, change func(*Resources) error) error {
	r := NewResources(Visible(*n))
	if err := change(&r); err != nil {
		return err
	}
	after, err := r.Network(*n)
	if err != nil {
		return err
	}
	if err := after.Validate(); err != nil {
		return badRequest("InvalidRequestFormat", "Cannot parse the request: %v.", err)
	}
	there := map[string]bool{}
	r = NewResources(Visible(after))
	for _, k := range kinds {
		all, err := k.objects(r)
		if err != nil {
			return err
		}
		for _, o := range all {
			there[key(o)] = true
		}
	}
	after.Attributes = maps.Clone(n.Attributes)
	maps.DeleteFunc(after.Attributes, func(id, _ string) bool { return !there[id] && !isGroupID(id) })
	if after.Attributes == nil {
		after.Attributes = map[string]string{}
	}
	*n = after
	return nil
}

// Conditions are a request's If-Match and If-None-Match.
type Conditions struct{ IfMatch, IfNoneMatch string }

func (c Conditions) check(o object) error {
	if c.IfNoneMatch == "*" && o != nil {
		return newError(http.StatusPreconditionFailed, "PreconditionFailed", "Precondition failed: the resource exists.")
	}
	if c.IfMatch != "" && c.IfMatch != "*" && (o == nil || o["etag"] != c.IfMatch) {
		return newError(http.StatusPreconditionFailed, "PreconditionFailed", "Precondition failed. Etag provided in if-match header %s does not "+
			"match etag %v of resource %v in NRP data store.", c.IfMatch, o["etag"], o["id"])
	}
	return nil
}

func isMissing(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound && e.Code != unknownType
}

// unknownType is the code of the error for a type of resources that no network of the lab has.
const unknownType = "InvalidResourceType"

func decode(body []byte) (object, error) {
	var o object
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(&o); err != nil || o == nil {
		return nil, badRequest("InvalidRequestContent", "The request content was invalid and could not be deserialized: '%v'.", err)
	}
	return o, nil
}

// resourceName is Azure's rule for the names of the network's resources ("Naming rules and restrictions for Azure resources",
// learn.microsoft.com).
var resourceName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,78}[A-Za-z0-9_])?$`)

// checkNames checks all names of a resource and its parts. Names become those of chains and comments.
func checkNames(v any) error {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if err := checkNames(e); err != nil {
				return err
			}
		}
	case object:
		name, ok := v["name"].(string)
		if ok && !resourceName.MatchString(name) {
			return badRequest("InvalidResourceName", "Resource name %q is invalid. The name can be up to 80 characters long. It must begin with a "+
				"word character, and it must end with a word character or with '_'. The name may contain word characters or '.', '-', '_'.", name)
		}
		for k, e := range v {
			if k != "tags" {
				if err := checkNames(e); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func asObject(v any) object {
	o, _ := v.(object)
	return o
}

func text(o object, name string) string {
	s, _ := o[name].(string)
	return s
}

// listOf returns the objects of a list.
func listOf(v any) (all []object) {
	items, _ := v.([]any)
	for _, i := range items {
		if o, ok := i.(object); ok {
			all = append(all, o)
		}
	}
	return all
}

// children returns a resource's parts of a kind.
func children(o object, kind string) []object {
	for k, v := range asObject(o["properties"]) {
		if strings.EqualFold(k, kind) {
			return listOf(v)
		}
	}
	return nil
}

// setChild sets a part of a resource and reports whether it is new.
func setChild(parent object, p Path, child object) bool {
	child["id"], child["name"] = text(parent, "id")+"/"+p.ChildKind+"/"+p.Child, p.Child
	properties := asObject(parent["properties"])
	field := p.ChildKind
	for k := range properties {
		if strings.EqualFold(k, field) {
			field = k
		}
	}
	items, _ := properties[field].([]any)
	for i := range items {
		if strings.EqualFold(text(asObject(items[i]), "name"), p.Child) {
			child["name"] = asObject(items[i])["name"]
			items[i] = child
			return false
		}
	}
	properties[field] = append(items, child)
	return true
}

func removeChild(parent object, p Path) bool {
	properties := asObject(parent["properties"])
	for k, v := range properties {
		items, _ := v.([]any)
		if !strings.EqualFold(k, p.ChildKind) {
			continue
		}
		rest := slices.DeleteFunc(items, func(i any) bool { return strings.EqualFold(text(asObject(i), "name"), p.Child) })
		properties[k] = rest
		return len(rest) < len(items)
	}
	return false
}

// overlay adds to an object what another one has and it has not. Elements of lists belong together by their names.
func (k kind) overlay(o, more object) {
	for name, m := range more {
		mine, ok := o[name]
		switch {
		case !ok, slices.Contains(k.chosen, name):
			o[name] = m
		case asObject(mine) != nil && asObject(m) != nil:
			k.overlay(asObject(mine), asObject(m))
		default:
			pairs(mine, m, k.overlay)
		}
	}
}

// subtract removes from an object what another one has too. Of elements of lists their names stay.
func (k kind) subtract(o, other object) {
	for name, mine := range o {
		theirs, ok := other[name]
		switch {
		case !ok && isReferences(mine): // what others say of the resource, as it was
			delete(o, name)
		case mine != nil && (!ok || slices.Contains(k.chosen, name)):
		case asObject(mine) != nil && asObject(theirs) != nil:
			if k.subtract(asObject(mine), asObject(theirs)); len(asObject(mine)) == 0 {
				delete(o, name)
			}
		default:
			if rest := k.subtractList(mine, theirs); len(rest) > 0 {
				o[name] = rest
			} else {
				delete(o, name)
			}
		}
	}
}

// subtractList returns the elements of a list of named objects that have more than those of the other list.
func (k kind) subtractList(list, other any) (rest []any) {
	pairs(list, other, func(mine, theirs object) {
		name := mine["name"]
		if k.subtract(mine, theirs); len(mine) > 0 {
			mine["name"] = name
			rest = append(rest, mine)
		}
	})
	return rest
}

// pairs calls a function with the elements of two lists that have the same name.
func pairs(a, b any, do func(a, b object)) {
	for _, one := range listOf(a) {
		name := text(one, "name")
		if other, ok := find(listOf(b), func(o object) bool { return strings.EqualFold(text(o, "name"), name) }); ok && name != "" {
			do(one, other)
		}
	}
}
