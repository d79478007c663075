// Package tours runs the examples' tours and holds the pages to what the commands print. A page is brought up to date with
//
//	go test ./test/tours -run TestTours/NAME -update
//
// after which what changes from run to run in a new output is to be replaced by "…", where its shape does not say so.
package tours
