// Package cli is the packetwalk command: its sub-commands, flags, help and output.
//
// It owns words and exit statuses (2 for bad input, 1 for a failure, that of the command for kubectl and ssh). What the commands
// do is others': lab's and azure's, and of walk and capture that of snapshot, walk, explain and proof. Nothing imports cli but
// cmd/packetwalk.
package cli
