// Package httprouting is what runs in the pods of AKS's HTTP application routing addon: the ingress controller, a reverse proxy that
// follows package ingress's table, and external-dns, which brings the hosts of Ingresses into the addon's DNS zone.
//
// Everything that decides is elsewhere, in packages ingress and dns. Here are the watches, the servers, and what is written back to the
// API.
package httprouting
