package tour

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
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
	// Next is called before each command, which is on the screen by then. An error ends the tour. Where Next is nil, the tour does not ask.
	Next func(context.Context) error
	// Limit is the time that a command may take. Default: two minutes.
	Limit time.Duration
	// Record is for writing a page: commands that it has no output of are run once.
	Record bool
	// Patience is how long a command is run again whose output is not yet what the page has: clusters take their time. Default: ten seconds.
	Patience time.Duration
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
	defaultPatience = 10 * time.Second
	pause           = 300 * time.Millisecond // between two runs of a command
	killDelay       = 3 * time.Second        // what a command has to end in when it is interrupted
)

// Run goes through the script. Differences are in the report; an error is a tour that did not come to its end.
func (r *Runner) Run(ctx context.Context) (*Report, error) {
	begin := time.Now()
	report := &Report{Outputs: map[int][]string{}}
	defer func() { report.Elapsed = time.Since(begin) }()
	names := newNames(r.Script.Varies, r.Endpoint)
	r.View.Title(r.Script.Title)
	for i, section := range r.Script.Sections {
		if section.Heading != "" {
			r.View.Heading(section.Heading, i, len(r.Script.Sections)-1)
		}
		for _, item := range section.Items {
			if item.Step == nil {
				r.View.Text(names.Here(item.Text))
				continue
			}
			if err := r.step(ctx, names, item.Step, report); err != nil {
				return report, err
			}
		}
	}
	return report, nil
}

// step asks, runs a command, again where that helps, and notes how what it printed differs.
func (r *Runner) step(ctx context.Context, names *Names, step *Step, report *Report) error {
	command := names.Here(step.Command)
	r.View.Command(command)
	if r.Next == nil {
		fmt.Fprintln(r.View)
	} else if err := r.Next(ctx); err != nil {
		return err
	}
	patience := r.Patience
	if patience == 0 {
		patience = defaultPatience
	}
	switch {
	case r.Record && len(step.Output) == 0:
		patience = 0
	case len(report.Differ) > 0:
		patience = min(patience, 2*time.Second) // what goes wrong now goes wrong because of what went wrong before
	}
	report.Steps++
	begin := time.Now()
	output, err := r.run(ctx, command, r.View)
	if output != "" && !strings.HasSuffix(output, "\n") {
		fmt.Fprintln(r.View)
	}
	failure := check(names, step, output, err)
	again := false
	for failure != nil && time.Since(begin) < patience && ctx.Err() == nil {
		again = true
		sleep(ctx, pause)
		output, err = r.run(ctx, command, io.Discard)
		failure = check(names, step, output, err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if again {
		r.View.Again(time.Since(begin), output)
	}
	if failure != nil {
		report.Differ = append(report.Differ, Failure{step, failure})
		report.Outputs[step.Line] = adopt(names, step, output)
		r.View.Differs(failure)
	}
	if strings.HasPrefix(step.Command, "packetwalk down") {
		names.Forget()
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
