package cli

import (
	"os"

	"golang.org/x/sys/windows"
)

// showsColour makes a console take colours, which it does only if it is asked to, and reports whether it does.
func showsColour(console *os.File) bool {
	handle, mode := windows.Handle(console.Fd()), uint32(0)
	return windows.GetConsoleMode(handle, &mode) == nil &&
		windows.SetConsoleMode(handle, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
