package tour

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrQuit is a tour that its reader has ended.
var ErrQuit = errors.New("the tour was ended")

// A Runner takes a reader through a script, or runs it without one.
type Runner struct {
	Script *Script
	Dir    string   // where the commands run: what the page's commands name is there
	Env    []string // theirs
	View   View
	// Endpoint reports whether a chain of iptables is called after an endpoint's address, and so otherwise in each lab; nil: none is.
	Endpoint func(chain string) bool
	// Reader answers before each command. Without a reader the tour runs straight through.
	Reader Reader
	// Begin says where the tour begins. The zero value is its first step.
	Begin Bookmark
	// Passed, if set, gets the reader's place after each step.
	Passed func(Bookmark)
	// Limit is the time that a command may take. Default: two minutes.
	Limit time.Duration
	// Record is for writing a page: commands that it has no output of are run once.
	Record bool
	// Patience is how long a command is run again whose output is not yet what the page has: clusters take their time. Default: half a minute.
	Patience time.Duration
}

// A Reader is the person at the terminal.
type Reader interface {
	// Ask shows a prompt and returns the line that the reader types after it. At the end of the input it returns ErrQuit.
	Ask(ctx context.Context, prompt string) (string, error)
	// Run runs a command that the reader typed, on the reader's terminal.
	Run(ctx context.Context, command *exec.Cmd) error
}

// A Report is what came of a tour.
type Report struct {
	Steps   int
	Differ  []Failure
	Elapsed time.Duration
	// Outputs are those that differ, in the page's names, for Rewrite.
	Outputs map[int][]string
}

// A Failure is a step that did not show what it should.
type Failure struct {
	Step *Step
	Err  error // a *Difference, or why the command failed
}

const (
	defaultLimit    = 2 * time.Minute
	defaultPatience = 30 * time.Second
	pause           = 300 * time.Millisecond // between two runs of a command
	killDelay       = 3 * time.Second        // what a command has to end in when it is interrupted
)

// A visit is one run through the script.
type visit struct {
	*Runner
	names  *Names
	report *Report
	total  int // steps of the script
	ran    map[*Step]bool
}

// A stop is an item of the script with the heading above it.
type stop struct {
	Item
	section int
	step    int // from 1; 0: a text
}

// stops returns the script's items in their order.
func (s *Script) stops() []stop {
	var all []stop
	steps := 0
	for i, section := range s.Sections {
		for _, item := range section.Items {
			next := stop{Item: item, section: i}
			if item.Step != nil {
				steps++
				next.step = steps
			}
			all = append(all, next)
		}
	}
	return all
}

// Run goes through the script. Differences are in the report; an error is a tour that did not come to its end.
func (r *Runner) Run(ctx context.Context) (*Report, error) {
	begin := time.Now()
	report := &Report{Outputs: map[int][]string{}}
	defer func() { report.Elapsed = time.Since(begin) }()
	v := visit{Runner: r, names: newNames(r.Script.Varies, r.Endpoint), report: report, total: len(r.Script.Steps()), ran: map[*Step]bool{}}
	stops := r.Script.stops()
	at := v.resume(stops)
	r.View.Title(r.Script.Title)
	section := 0
	for at < len(stops) {
		s := stops[at]
		if s.section != section {
			section = s.section
			r.View.Heading(r.Script.Sections[section].Heading, section, len(r.Script.Sections)-1)
		}
		if s.Step == nil {
			r.View.Text(v.names.Here(s.Text))
			at++
			continue
		}
		switch err := v.step(ctx, s); {
		case errors.Is(err, errBack):
			at = stepBefore(stops, at)
		case err != nil:
			return report, err
		default:
			at++
		}
	}
	return report, nil
}

// resume returns the stop at which the tour begins, and learns the names that the reader's bookmark has.
func (v *visit) resume(stops []stop) int {
	for at, s := range stops {
		if v.Begin.Step > 0 && s.step == v.Begin.Step+1 {
			v.names.recall(v.Begin.Names)
			return at
		}
	}
	return 0
}

// stepBefore returns the last stop with a step before the one at. At the first step it returns that one.
func stepBefore(stops []stop, at int) int {
	for i := at - 1; i >= 0; i-- {
		if stops[i].Step != nil {
			return i
		}
	}
	return at
}

// errBack is the reader's wish to see the step before.
var errBack = errors.New("back to the step before")

// keys tells what the reader can type at a step.
const keys = "step %d of %d: Enter runs it, b goes back, q ends, anything else runs as your own command: "

// ask shows a command and waits until the reader wants it to run. Commands of the reader's run meanwhile.
func (v *visit) ask(ctx context.Context, s stop, command string) error {
	for {
		v.View.Command(command)
		fmt.Fprintln(v.View)
		answer, err := v.Reader.Ask(ctx, v.View.dim(fmt.Sprintf(keys, s.step, v.total)))
		if err != nil {
			return err
		}
		switch answer = strings.TrimSpace(answer); answer {
		case "", command:
			return nil
		case "q", "quit":
			return ErrQuit
		case "b", "back":
			return errBack
		}
		own := exec.CommandContext(ctx, "bash", "-c", answer)
		own.Dir, own.Env = v.Dir, v.Env
		if err := v.Reader.Run(ctx, own); err != nil {
			fmt.Fprintln(v.View, v.View.dim(err.Error()))
		}
	}
}

// step asks, runs a command, again where that helps, and notes how what it printed differs.
func (v *visit) step(ctx context.Context, s stop) error {
	names, step, report := v.names, s.Step, v.report
	command := names.Here(step.Command)
	if v.Reader == nil {
		v.View.Command(command)
		fmt.Fprintln(v.View)
	} else if err := v.ask(ctx, s, command); err != nil {
		return err
	}
	if v.ran[step] { // the reader went back: only the last run counts
		report.Differ = slices.DeleteFunc(report.Differ, func(f Failure) bool { return f.Step == step })
		delete(report.Outputs, step.Line)
	}
	v.ran[step] = true
	report.Steps = len(v.ran)
	patience := v.Patience
	if patience == 0 {
		patience = defaultPatience
	}
	switch {
	case v.Record && len(step.Output) == 0:
		patience = 0
	case len(report.Differ) > 0:
		patience = min(patience, 2*time.Second) // what goes wrong now goes wrong because of what went wrong before
	}
	begin := time.Now()
	output, err := v.run(ctx, command, v.View)
	if output != "" && !strings.HasSuffix(output, "\n") {
		fmt.Fprintln(v.View)
	}
	failure := check(names, step, output, err)
	again := false
	for failure != nil && time.Since(begin) < patience && ctx.Err() == nil {
		again = true
		sleep(ctx, pause)
		output, err = v.run(ctx, command, io.Discard)
		failure = check(names, step, output, err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if again {
		v.View.Again(time.Since(begin), output)
	}
	if failure != nil {
		report.Differ = append(report.Differ, Failure{step, failure})
		report.Outputs[step.Line] = adopt(names, step, output)
		v.View.Differs(failure)
	}
	if strings.HasPrefix(step.Command, "packetwalk down") {
		names.Forget()
	}
	if v.Passed != nil {
		v.Passed(Bookmark{Step: s.step, Names: names.learned()})
	}
	return nil
}

func check(names *Names, step *Step, output string, err error) error {
	if err != nil {
		return err
	}
	if d := names.Compare(step, Lines(output)); d != nil {
		return d
	}
	return nil
}

// adopt gives an output in the page's names; names that the page does not have stand for themselves from now on.
func adopt(names *Names, step *Step, output string) []string {
	lines := Lines(output)
	for i, line := range lines {
		lines[i] = names.Page(line)
	}
	_ = names.Compare(&Step{Output: lines, AnyOrder: step.AnyOrder}, Lines(output)) // learns the names; the lines are these
	return lines
}

// run gives what a command printed, both streams as they came. What it started and did not wait for ends with it.
func (r *Runner) run(ctx context.Context, command string, screen io.Writer) (string, error) {
	limit := r.Limit
	if limit == 0 {
		limit = defaultLimit
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(bounded, "bash", "-c", command)
	cmd.Dir, cmd.Env = r.Dir, r.Env
	// A group of its own, so that all of it can be ended, and so that the terminal's Ctrl-C is the tour's.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = killDelay
	out := &tee{screen: screen}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // ESRCH, as a rule: no process is left
	}
	switch {
	case bounded.Err() != nil && ctx.Err() == nil:
		err = fmt.Errorf("the command did not end within %v", limit)
	case errors.Is(err, exec.ErrWaitDelay):
		err = errors.New("the command left something behind that holds its output open: redirect it")
	}
	return out.String(), err
}

// A tee keeps what it also shows.
type tee struct {
	mu     sync.Mutex
	kept   bytes.Buffer
	screen io.Writer
}

func (t *tee) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept.Write(p)
	return t.screen.Write(p)
}

func (t *tee) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept.String()
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
