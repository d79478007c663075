// Package iptables owns the syntax of iptables: tables, chains, rules, matches and targets as plain data, printed to the letter as
// iptables-save prints them (checked against iptables 1.8.9), parsed from that form, and written as input for iptables-restore --noflush.
//
// Each extension (iptables-extensions(8)) is one value in a file ext_NAME.go: its options, its meaning in netfilter's terms, and the form
// in which iptables -L lists it. Those that are alike share a file: of ports, of address translation, of marks, of limits, of the type of
// service, of the time to live. Those of which only the options are known, or the form, stand in the tables of extension.go.
//
// What the parser does not know stays verbatim in Rule.Unknown: it prints again as it was read, and nothing pretends to understand it.
package iptables
