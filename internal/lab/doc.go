// Package lab is a whole cluster on this machine: it brings it up, keeps it up, says how it is, and takes it down.
//
// It owns the lab process, the layout of /run/packetwalk/<lab>, the order in which the parts start, and the control socket that
// the command line talks to. What a part does is the part's: lab wires them together and knows as little of each as it can.
//
// Nothing imports lab but cli. The lab process holds no part of the data path: it can be killed at any moment and
// what is established goes on; a new lab process for the same directory takes over what it finds.
package lab
