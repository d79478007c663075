// Package capture owns how the state of hosts gets into a snapshot: the table of what is dumped of a host, and by which command; what reads
// each of those texts; and the file format of a capture, raw texts with a manifest (docs/capture.md).
//
// The running lab, a live machine and a capture from far away come the same way: an [Origin] of texts, which [NewSource] reads host by
// host. Each part of a host's state ends as read, absent or unread: snapshot.Host.Unread says what could not be read.
//
// The package runs no command and touches no machine (kernel/dump does).
package capture
