// Package ipset owns the syntax of "ipset save" (and reads that of "ipset list"): sets and their elements as data, parsed, printed again,
// and lowered into netfilter's sets.
package ipset
