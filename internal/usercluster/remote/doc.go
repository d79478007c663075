// Package remote is the conversation with one node of a cluster, over one stream: the standard input and output of a program that an exec
// has started there. On the node [Serve] answers what hosts there are (the node and its pods), gives their states as raw texts, and sends
// and watches packets; elsewhere [Open] gives a [Node], whose methods ask. Neither side believes the other: names are checked, sizes and
// times are bounded.
//
// A message is a frame: its length in bytes, 32 bits in network order, and JSON. A question has a number, which its answers bear; of
// several answers the last one says so. Questions may overlap. What a conversation has opened on the node (sockets, traces, captures) goes
// when it ends, also by breaking off, or because the reader stopped.
package remote
