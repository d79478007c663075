// Package cli is the packetwalk command: its sub-commands, flags, help and output.
//
// It owns words and exit statuses (2 for bad input, 1 for a failure, that of the command for kubectl and ssh). What the commands do is
// others': lab's and azure's; of walk that of ends, snapshot, walk, explain and proof; of capture that of capture, excerpt and redact; of
// image pods/images'. Nothing imports cli but cmd/packetwalk.
package cli
