// Package nfttext owns nft's own syntax as people paste it: it puts tables, chains and commands together, and has nft read them. Of what nft
// refuses it keeps what can be read.
package nfttext
