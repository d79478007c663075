package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/base/termsafe"
)

// helpWidth is the most columns of help, as wide as many terminals are by default. Lines that users copy may be longer.
const helpWidth = 80

// wrapHelp breaks the lines of a command's help, and of the help of all commands below it.
func wrapHelp(c *cobra.Command) {
	c.Long = wrapParagraphs(c.Long)
	c.SetUsageTemplate(strings.ReplaceAll(c.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", helpWidth)))
	for _, below := range c.Commands() {
		wrapHelp(below)
	}
}

// wrapParagraphs breaks paragraphs into lines of helpWidth. An indented line is a paragraph, whose further lines are indented by two columns
// more.
func wrapParagraphs(text string) string {
	var wrapped []string
	var paragraph []string
	flush := func() {
		if paragraph != nil {
			wrapped = append(wrapped, termsafe.Wrap(strings.Join(paragraph, " "), helpWidth)...)
			paragraph = nil
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		content := strings.TrimLeft(line, " ")
		indent := line[:len(line)-len(content)]
		switch {
		case content == "":
			flush()
			wrapped = append(wrapped, "")
		case indent == "":
			paragraph = append(paragraph, line)
		default:
			flush()
			for i, part := range termsafe.Wrap(content, helpWidth-len(indent)-2) {
				if i == 1 {
					indent += "  "
				}
				wrapped = append(wrapped, indent+part)
			}
		}
	}
	flush()
	return strings.Join(wrapped, "\n")
}

// addHelp adds cobra's command for help, which refuses the name of an unknown command as the command line does.
func addHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(_ *cobra.Command, args []string) error {
		topic, rest, err := root.Find(args)
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("unknown command %q for %q", rest[0], topic.CommandPath())
		}
		return err
	}
}

// addCompletion adds cobra's command for completion, which answers an unknown shell with the names of those that it knows.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		var shells []string
		for _, shell := range c.Commands() {
			shells = append(shells, shell.Name())
		}
		slices.Sort(shells)
		c.Args = noArguments("its shells are " + strings.Join(shells, ", "))
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
}
