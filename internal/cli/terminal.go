package cli

import (
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"packetwalk.dev/internal/base/termsafe"
)

// A screen is what output is for. The zero value is what is no terminal: no colours, and no line is broken.
type screen struct {
	colour bool
	width  int // columns
}

// when says whether there are colours: "auto", "always" or "never", as for ls and grep.
type when string

func colourFlag(c *cobra.Command, w *when) {
	*w = "auto"
	c.Flags().Var(w, "color", "auto (on a terminal, unless $NO_COLOR is set), always or never")
}

func (w *when) String() string { return string(*w) }
func (w *when) Type() string   { return "when" }
func (w *when) Set(s string) error {
	if s != "auto" && s != "always" && s != "never" {
		return errors.New("use auto, always or never")
	}
	*w = when(s)
	return nil
}

// screen returns the screen of a command's output. NO_COLOR is https://no-color.org's.
func (w when) screen(out io.Writer) screen {
	s := screen{colour: w == "always"}
	if !isTerminal(out) {
		return s
	}
	if w == "auto" {
		s.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && showsColour(out.(*os.File))
	}
	if width, _, err := term.GetSize(int(out.(*os.File).Fd())); err == nil {
		s.width = width
	}
	return s
}

// forReading returns a writer for a log. A file or another program gets the log as it is; a terminal gets nothing that it takes for a
// command to itself. kubectl is upstream's, and writes pods' logs as they are, as its users expect.
func forReading(out io.Writer) io.Writer {
	if isTerminal(out) {
		return termsafe.Writer(out)
	}
	return out
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// The looks of words (ECMA-48, SGR).
const (
	red    = "31"
	green  = "32"
	yellow = "33"
)

// paint gives a text on one line its look. What others made has no control characters in it, nor a second line.
func (s screen) paint(look, text string) string {
	text = termsafe.Text(text)
	if !s.colour {
		return text
	}
	return "\x1b[" + look + "m" + text + "\x1b[0m"
}
