package snapshot

import (
	"bytes"
	"errors"

	"packetwalk.dev/internal/conntrack"
)

var errNoParser = errors.New("this version does not read it yet")

func loadIPTables(bool) func(*loader, Output) error {
	return func(_ *loader, out Output) error { return unlessEmpty(out) }
}
func loadEBTables(_ *loader, out Output) error { return unlessEmpty(out) }
func loadNFT(_ *loader, out Output) error      { return unlessEmpty(out) }
func loadIPSets(_ *loader, out Output) error   { return unlessEmpty(out) }

func unlessEmpty(out Output) error {
	if len(bytes.TrimSpace(out.Data)) == 0 {
		return nil
	}
	return errNoParser
}

func loadFlows(l *loader, out Output) error {
	flows, err := conntrack.Parse(out.Data)
	l.flows = append(l.flows, flows...)
	return err
}
