//go:build linux

package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"packetwalk.dev/examples"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/tempfile"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/lab/preflight"
	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/tour"
	"packetwalk.dev/internal/writers"
)

type tourFlags struct {
	name               string
	yes, print, update bool
	restart            bool
	colour             when
}

func tourCommand(s Streams) *cobra.Command {
	var f tourFlags
	c := &cobra.Command{
		Use:   "tour [EXAMPLE] [--yes]",
		Short: "go through an example step by step: a command, its output, what it shows",
		Long: `Goes through an example's page step by step: what we ask, the command, its output, what it shows. The tour waits
before each command. Enter runs the command, b and Enter goes back one step, q and Enter ends the tour. Any other line runs as a command of
your own: kubectl, ssh, az and packetwalk in it mean the tour's lab. The first command brings the example's cluster up, or uses the one
that is up; the last one takes it down. A tour that you ended goes on at the same step next time, as long as its lab is up; --restart
begins at the first step. Without an argument the tours are listed.

With --yes, or where input or output is no terminal, it runs straight through, and the exit status is 1 if a command did not print what
the page has. Names, addresses, ports and times that differ from cluster to cluster may do so; a name that stands for another one does so
on the whole page.

EXAMPLE may also be a folder (with a slash in it) that has such a page, README.md, and the files that its commands name.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listTours(s.Out)
			}
			return runTour(c.Context(), s, args[0], f)
		},
	}
	c.Flags().StringVar(&f.name, "name", "", "the lab's name (default \"tour-EXAMPLE\")")
	completeLab(c)
	c.ValidArgsFunction = completeBy(func(_ context.Context, args []string) ([]string, error) {
		if len(args) > 0 {
			return nil, nil
		}
		return tourNames(), nil
	})
	c.Flags().BoolVarP(&f.yes, "yes", "y", false, "run straight through, and compare")
	c.Flags().BoolVar(&f.restart, "restart", false, "begin at the first step, also where you ended this tour before")
	c.Flags().BoolVar(&f.print, "print", false, "print the page and do nothing")
	colourFlag(c, &f.colour)
	c.Flags().BoolVar(&f.update, "update", false, "run straight through and write what differs into the README.md of the folder EXAMPLE")
	return c
}

// tourPage is an example's page and the files around it.
type tourPage struct {
	name   string
	folder string // on disk; empty: within the program
	files  fs.FS
	page   string
	script *tour.Script
}

func openTour(example string) (*tourPage, error) {
	t := &tourPage{name: example}
	if strings.Contains(example, "/") || example == "." {
		folder, err := filepath.Abs(example)
		if err != nil {
			return nil, err
		}
		t.name, t.folder, t.files = filepath.Base(folder), folder, os.DirFS(folder)
	} else if !slices.Contains(tourNames(), example) {
		return nil, fmt.Errorf("no tour %q; there are: %s; a folder of your own has a slash in its name", example,
			strings.Join(tourNames(), ", "))
	} else {
		files, err := fs.Sub(examples.Files, example)
		if err != nil {
			return nil, err
		}
		t.files = files
	}
	page, err := fs.ReadFile(t.files, "README.md")
	if err != nil {
		return nil, err
	}
	t.page = string(page)
	if t.script, err = tour.Parse(t.page); err != nil {
		return nil, fmt.Errorf("%s/README.md: %w", example, err)
	}
	return t, nil
}

// tourNames returns the examples that the program has within. A folder whose page has no commands is no tour.
func tourNames() []string {
	pages, _ := fs.Glob(examples.Files, "*/README.md") // the pattern is a good one
	var names []string
	for _, file := range pages {
		page, _ := examples.Files.ReadFile(file) // an embedded file can be read
		if _, err := tour.Parse(string(page)); !errors.Is(err, tour.ErrNoSteps) {
			names = append(names, path.Dir(file))
		}
	}
	return names
}

func listTours(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(w, "TOUR\tSTEPS\tABOUT")
	for _, name := range tourNames() {
		t, err := openTour(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%d\t%s\n", name, len(t.script.Steps()), t.script.Title)
	}
	fmt.Fprintf(w, "\nBegin one with: %s tour NAME\n", readersCommand())
	return w.Flush()
}

func runTour(ctx context.Context, s Streams, example string, f tourFlags) error {
	t, err := openTour(example)
	if err != nil {
		return badInput{err}
	}
	if f.print {
		_, err := io.WriteString(termsafe.Writer(s.Out), t.page)
		return err
	}
	if f.update && t.folder == "" {
		return badInput{fmt.Errorf("--update writes a page: name its folder, such as ./examples/%s", example)}
	}
	name := cmp.Or(f.name, "tour-"+t.name)
	if err := lab.CheckName(name); err != nil {
		return badInput{err}
	}
	if err := checkMachine(ctx, s.Out, preflight.Lab); err != nil {
		return err
	}
	runner, clean, err := t.runner(s, name, f.colour)
	if err != nil {
		return err
	}
	defer clean()
	runner.Record = f.update
	if term.IsTerminal(int(s.In.Fd())) && isTerminal(s.Out) && !f.yes && !f.update {
		runner.Reader = tourReader{s.In, s.Out}
		marks := bookmarks{lab.DirOf(name), t.page}
		if !f.restart {
			runner.Begin = marks.read()
		}
		if runner.Begin.Step >= len(t.script.Steps()) { // the reader came to its end
			runner.Begin = tour.Bookmark{}
		}
		if runner.Begin.Step > 0 {
			fmt.Fprintf(s.Out, "You ended this tour after step %d; it goes on from there. With --restart it begins at step 1.\n\n", runner.Begin.Step)
		}
		runner.Passed = marks.write
	}
	report, err := runner.Run(ctx)
	if err != nil || len(report.Differ) > 0 {
		defer printHowToEnd(s.Out, name)
	}
	switch {
	case errors.Is(err, tour.ErrQuit):
		return nil
	case err != nil:
		return err
	}
	fmt.Fprintf(s.Out, "\ntour %s: %d steps in %.0f s, %d not as the page has it\n", t.name, report.Steps, report.Elapsed.Seconds(),
		len(report.Differ))
	if f.update {
		return t.rewrite(report)
	}
	if len(report.Differ) > 0 {
		printFailures(termsafe.Writer(s.Out), report.Differ)
		if runner.Reader == nil {
			return exitStatus(1)
		}
	}
	return nil
}

// runner makes the folder that the commands run in, a workplace on the tour's lab. clean removes it.
func (t *tourPage) runner(s Streams, name string, colour when) (r *tour.Runner, clean func(), err error) {
	w, err := newWorkplace(lab.DirOf(name))
	if err != nil {
		return nil, nil, err
	}
	files := filepath.Join(w.dir, t.name)
	if err := os.CopyFS(files, t.files); err != nil {
		w.remove()
		return nil, nil, tempfile.Explain(err)
	}
	on := colour.screen(s.Out)
	view := tour.View{Writer: termsafe.Writer(s.Out), Color: on.colour, Width: min(on.width, 120)}
	book := writers.Book(&snapshot.Objects{})
	endpoint := func(chain string) bool {
		c := book.Chain(attribution.IP, iptables.NAT, chain)
		return c != nil && c.Role == attribution.Endpoint
	}
	return &tour.Runner{Script: t.script, Dir: files, Env: w.env, View: view, Endpoint: endpoint}, w.remove, nil
}

// bookmarks keeps the place of a page's reader in the files of the tour's lab, which go with the lab.
type bookmarks struct {
	lab  lab.Dir
	page string
}

// A bookmarkFile is the file's content. A place counts for the page that it was written for.
type bookmarkFile struct {
	Page string `json:"page"` // SHA-256
	tour.Bookmark
}

func (b bookmarks) file() string   { return b.lab.Path("tour.json") }
func (b bookmarks) digest() string { return fmt.Sprintf("%x", sha256.Sum256([]byte(b.page))) }

// read returns the place where the reader ended the tour. Without a lab or a usable file it is the beginning.
func (b bookmarks) read() tour.Bookmark {
	var f bookmarkFile
	text, err := os.ReadFile(b.file())
	if err != nil || json.Unmarshal(text, &f) != nil || f.Page != b.digest() {
		return tour.Bookmark{}
	}
	return f.Bookmark
}

// write replaces the file after a step. It does nothing without a lab; a tour without its bookmark still works.
func (b bookmarks) write(place tour.Bookmark) {
	if !b.lab.Exists() {
		return
	}
	if text, err := json.Marshal(bookmarkFile{b.digest(), place}); err == nil {
		_ = atomicfile.Write(b.file(), text, 0o600)
	}
}

// printHowToEnd prints how to remove the lab of a tour that ended early.
func printHowToEnd(out io.Writer, name string) {
	if !lab.DirOf(name).Exists() {
		return
	}
	self := readersCommand()
	fmt.Fprintf(out, "\nlab %[1]q is still there:  %[2]s status --name %[1]s\ntake it down with:  %[2]s down --name %[1]s\n", name, self)
}

func printFailures(out io.Writer, failures []tour.Failure) {
	for _, f := range failures {
		fmt.Fprintf(out, "\nline %d: %s: %v\n", f.Step.Line, f.Step.Command, f.Err)
		var d *tour.Difference
		if !errors.As(f.Err, &d) {
			continue
		}
		for _, line := range d.Want {
			fmt.Fprintln(out, "  page:", line)
		}
		for _, line := range d.Got {
			fmt.Fprintln(out, "  here:", line)
		}
	}
}

// rewrite puts the outputs of this run in place of those that differed.
func (t *tourPage) rewrite(report *tour.Report) error {
	page, err := tour.Rewrite(t.page, report.Outputs)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(t.folder, "README.md"), []byte(page), 0o644)
}
