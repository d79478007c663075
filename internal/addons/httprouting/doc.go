// Package httprouting is what runs in the pods of AKS's HTTP application routing addon: the ingress controller, a reverse proxy that
// follows package ingress's table, and external-dns, which brings the hosts of Ingresses into the addon's DNS zone.
//
// Everything that decides is elsewhere, in packages ingress and dns. Here are the watches, the servers, and what is written back to the
// API. The package must not import the lab, nor what touches the machine: its programs are ordinary ones in ordinary pods.
package httprouting
