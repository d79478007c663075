package snapshot

import "errors"

var errNoParser = errors.New("this version does not read it yet")

func loadIPTables(bool) func(*loader, Output) error {
	return func(*loader, Output) error { return errNoParser }
}
func loadEBTables(*loader, Output) error { return errNoParser }
func loadNFT(*loader, Output) error      { return errNoParser }
func loadIPSets(*loader, Output) error   { return errNoParser }
func loadFlows(*loader, Output) error    { return errNoParser }
