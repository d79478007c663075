//go:build !windows

package cli

import "os"

// showsColour reports whether a terminal takes colours, as all of them do.
func showsColour(*os.File) bool { return true }
