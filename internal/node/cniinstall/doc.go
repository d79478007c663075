// Package cniinstall writes CNI plugins and a network configuration list into a node's directories, and takes them away: each file whole,
// the plugins before the configuration that names them, and away in the other order. A record beside the configuration has the hashes of
// what was written, so that what is of others is neither replaced nor removed, and who was killed half-way is followed by one who finishes.
//
// It owns those files and the record. It runs as root in directories of a node: it opens them without links, and follows none in them.
package cniinstall
