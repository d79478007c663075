// Package excerpt owns the reading of text that people copy out of terminals, articles and tickets: what it shows of one host's state
// becomes a snapshot, and what had to be assumed is said.
package excerpt
