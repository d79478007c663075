// Package netfilter owns the meaning of packet filter rules, whichever syntax they were written in: tables, chains and rules as data,
// what each test and each effect does to a packet, and the evaluation of a chain.
//
// iptables, nftables and ebtables rules are lowered into this package by the packages of their syntax. There is one file for each kind of
// statement. What cannot be understood is the statement Unknown, which is never taken for a match, a miss or an accept: the evaluation asks
// the [Chooser], and so goes on with both.
//
// A chain is evaluated with an index over the fields that its rules test, so that the cost does not grow with the number of rules; the
// plain evaluation, rule after rule, stays beside it as the reference of the tests, and for those who want to see every rule.
package netfilter
