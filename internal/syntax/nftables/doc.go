// Package nftables owns the syntax of nftables as "nft -j" writes it (libnftables-json(5)): tables, chains, rules, expressions and sets as
// data, parsed, printed again to the letter, shown as nft text, and lowered into package netfilter.
//
// What the parser does not know stays verbatim and is lowered to an Unknown statement.
package nftables
