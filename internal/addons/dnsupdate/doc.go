// Package dnsupdate reads and writes dynamic updates of a DNS zone (RFC 2136) and transfers of a whole one (AXFR, RFC 5936), as far as address
// records go: what external-dns sends, and the lab's name servers take.
//
// It is pure, and small, because the built-in applications are: it must not import anything internal.
package dnsupdate
