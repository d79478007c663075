// Package webui serves a page that shows a network and the way of packets through it, on this machine alone. The page shows what the
// command line prints as JSON: it has no other source. The same page with one answer in it is a file that needs no server.
package webui
