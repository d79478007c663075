// Package dns is Azure's and the internet's name servers, and DNS updates (RFC 2136) and zone transfers (RFC 5936) of address records
// between external-dns and them, on github.com/miekg/dns. Records, and what questions and updates do with them, are pure; Server and Client
// have the network, Zone a file. Updates and transfers are for those who have the key (TSIG, RFC 8945).
package dns
