// Package verify holds the model against the kernel: random worlds of network namespaces, each of whose packets is first predicted by
// packetwalk's walk and then really sent and traced, and compared step by step.
//
// A [World] is plain text, one command a line, so that it can be stored, read, shrunk line by line and replayed. The snapshot is dumped and
// parsed as for a capture, and the comparison is the one of "walk --live": what is proved here is what users get.
//
// Run with "make verify N=5000 SEED=1". Worlds in which prediction and kernel disagreed are kept under testdata/found, shrunk, and are
// replayed by every test.
package verify
