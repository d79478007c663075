// Package scripts has tests of the scripts that the Makefile runs, on made-up machines: a PATH with what the script calls and a Go and an
// apt that do as those of a system do.
package scripts
