// Package tour takes an example's page for a script: its headings ask, its console blocks have commands with the output that they had when
// the page was written, and the text behind a block says what that shows. It parses such a page, runs it step by step, and compares what
// commands print with what the page has.
//
// What a cluster makes anew each time (names, addresses, ports, times) is recognised by its shape, see the table of kinds, and a name or
// address that stands for another one does so on the whole page. Parsing and comparing are pure; the runner starts commands with bash. It
// knows nothing of labs and must not import any internal package.
package tour
