package cli

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Texts of all packages name commands as 'packetwalk COMMAND …', and do not know who reads them: with sudo or not, from which directory, and
// of which of several labs. A hinter completes these commands where a text is printed.
type hinter struct {
	self string   // how the reader starts this program
	lab  string   // the lab that the text is about, "" for the one that commands mean without --name
	take []string // the commands that take --name
}

// hintsOf returns the hinter of a command line. It names the lab that the command line names.
func hintsOf(root *cobra.Command, args []string) hinter {
	h := hinter{self: readersCommand()}
	for _, c := range root.Commands() {
		if c.DisableFlagParsing || c.Flags().Lookup("name") != nil {
			h.take = append(h.take, c.Name())
		}
	}
	if len(args) == 0 || !slices.Contains(h.take, args[0]) {
		return h
	}
	if c, _, err := root.Find(args[:1]); err != nil || c.DisableFlagParsing {
		args = args[:min(len(args), 3)] // --name stands directly after these
	}
	for i, a := range args[1:] {
		name, isName := strings.CutPrefix(a, "--name=")
		switch {
		case a == "--":
			return h
		case isName:
			h.lab = name
		case a == "--name" && i+2 < len(args):
			h.lab = args[i+2]
		}
	}
	return h
}

// printed finds a command of packetwalk in a text: in quotes or brackets, or after a colon or a pipe.
var printed = regexp.MustCompile(`(^|['"(]|: |\| )packetwalk ([a-z]+)( --name\b| --all\b)?`)

// complete returns a text with its commands as they run for the reader.
func (h hinter) complete(text string) string {
	return printed.ReplaceAllStringFunc(text, func(found string) string {
		m := printed.FindStringSubmatch(found)
		before, command, has := m[1], m[2], m[3]
		if slices.Contains(h.take, command) {
			if h.lab != "" && has == "" {
				has = " --name " + h.lab
			}
		} else if !slices.Contains([]string{"completion", "doctor", "image", "import", "list"}, command) {
			return found // words, not a command
		}
		return before + h.self + " " + command + has
	})
}
