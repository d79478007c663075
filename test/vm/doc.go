// Package vm runs labs on a stock Linux machine: a virtual machine with a distribution's own kernel and systemd. make test-vm boots
// it (scripts/test-vm) and runs this package's tests there. Elsewhere they are skipped.
package vm
