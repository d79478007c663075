// Package lab runs a whole cluster on this machine: it starts it, keeps it running, changes it, reports its state and takes it down.
//
// It owns the lab process: the graph of its components (newLab), most of which are in packages of their own, and the control socket that
// the command line talks to.
// The lab process holds no part of the data path. It can be killed at any moment, and established connections go on. A new lab process for
// the same directory adopts what it finds.
package lab
