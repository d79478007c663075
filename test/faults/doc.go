// Package faults tests that a lab survives what happens to it, and that it leaves nothing behind. It drives labs by the packetwalk
// command and looks at the machine for what is left of them.
package faults
