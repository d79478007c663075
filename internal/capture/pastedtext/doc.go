// Package pastedtext owns taking apart the text that people copy out of terminals, articles and tickets: lines, without what stands around
// them, become tables of iptables and blocks of other programs' output, with an account of every line.
package pastedtext
