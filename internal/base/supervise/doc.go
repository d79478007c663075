// Package supervise keeps processes running: it starts them, writes their output to a file, restarts what dies after a growing pause and
// stops them.
//
// The processes outlive the supervising process, even one that is killed: the next one adopts them by a pid file.
// It knows nothing of what it runs and imports nothing of ours but base; where a process starts (which namespace) is its caller's.
package supervise
