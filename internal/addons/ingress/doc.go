// Package ingress turns Ingresses of networking.k8s.io/v1, with the Services, EndpointSlices and Secrets that they name, into a routing
// table: for each host its routes in the order in which they are tried, each with the endpoints behind it. A look-up says where a request
// goes and why; what could not be followed is a Problem on its Ingress, never passed over.
//
// Where the API leaves a choice, the table does what ingress-nginx does, the controller of AKS's HTTP application routing addon: the host
// is chosen first and then a path within it (server and location of nginx), of two Ingresses with the same host and path the older one
// counts.
//
// The package is pure: it must not import client-go, nor anything of the machine. The same objects in any order make the same table.
package ingress
