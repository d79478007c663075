// Package ebtables owns what ebtables-save prints: tables, chains and rules as text that is parsed, printed again to the letter, and
// lowered into netfilter's meaning. Its values are read by nft's datatypes (package nftables).
//
// What it does not understand of a rule is Unknown.
package ebtables
